"""Reads dumps in a process of its own, with limits: what a hostile dump may break is this process alone.

Lines with a rank and a path come in on standard input; for each, one answer goes out: its length, then a
MessagePack of `Answer`.
"""

from __future__ import annotations

import gc
import resource
import stat
import struct
import sys
from pathlib import Path

import msgspec

from rankwatch_diagnosis.hang.dumps.layout import read_recorder_pickle
from rankwatch_diagnosis.hang.dumps.parse import parse_dump
from rankwatch_diagnosis.hang.dumps.plain_pickle import load_plain
from rankwatch_diagnosis.hang.snapshot import Snapshot

BOM = b"\xef\xbb\xbf"
LENGTH = struct.Struct(">I")
MAX_FILE_BYTES = 256 << 20
"""2,000 entries are 0.3 MB as a pickle and 1.1 MB as JSON."""
MEMORY_BYTES = 3 << 30
"""Address space of a worker: a pickle of a few bytes can ask for any amount."""


class Answer(msgspec.Struct, array_like=True):
    """What one file gave."""

    snapshot: Snapshot | None
    error: str = ""
    """Why there is no snapshot."""


def main() -> None:
    """Answer until the input ends."""
    allowed = resource.getrlimit(resource.RLIMIT_AS)[1]
    memory = MEMORY_BYTES if allowed == resource.RLIM_INFINITY else min(MEMORY_BYTES, allowed)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.disable()  # plain containers of a dump hold no cycle that matters, and a dump is dropped as a whole
    output = sys.stdout.buffer
    encoder = msgspec.msgpack.Encoder()
    for line in sys.stdin.buffer:
        rank, _, path = line.rstrip(b"\n").partition(b" ")
        answer = read_dump(Path(path.decode(errors="surrogateescape")), int(rank))
        try:
            body = encoder.encode(answer)
        except (msgspec.MsgspecError, OverflowError, UnicodeEncodeError):
            body = encoder.encode(Answer(None, "its numbers or texts are out of range"))
        output.write(LENGTH.pack(len(body)) + body)
        output.flush()


def read_dump(path: Path, rank: int) -> Answer:
    """One file as an answer; never raises for what the file holds."""
    try:
        data = _load(path).removeprefix(BOM)
        # No pickle begins with a brace.
        if data.lstrip()[:1] == b"{":
            return Answer(parse_dump(msgspec.json.decode(data), rank))
        known = read_recorder_pickle(data, rank)
        return Answer(known if known is not None else parse_dump(load_plain(data), rank))
    except OSError as error:
        return Answer(None, f"could not be read: {error.strerror or error}")
    except MemoryError:
        return Answer(None, f"needs more than {MEMORY_BYTES >> 30} GiB of memory")
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        return Answer(None, str(error)[:300])


def _load(path: Path) -> bytes:
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError("is no regular file")
    if facts.st_size > MAX_FILE_BYTES:
        raise ValueError(f"is larger than {MAX_FILE_BYTES >> 20} MiB")
    return path.read_bytes()


if __name__ == "__main__":
    main()
