"""`python -m rankwatch.checkpoint_files PATH`: verify one checkpoint beside a training, and print JSON.

The agent starts it: it takes the processor and the disk only when nobody else wants them, lets no checkpoint
push other files out of memory, and ends when its parent does.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import resource
import sys
from pathlib import Path

from rankwatch.checkpoint_files.result import CheckpointError, CheckpointGoneError
from rankwatch.checkpoint_files.verify import verify

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IDLE_CLASS = 3 << 13
_MEMORY_BYTES = 4 << 30


def main() -> None:
    """Print one JSON object: `result`, `gone` or `error`."""
    parser = argparse.ArgumentParser(prog="python -m rankwatch.checkpoint_files")
    parser.add_argument("--bytes-per-second", type=float)
    parser.add_argument("--owner", type=int, help="user who must own the checkpoint, if it is not root")
    parser.add_argument("path", type=Path)
    given = parser.parse_args()
    _step_back()
    parent = os.getppid()

    def progress(_: int) -> None:
        if os.getppid() != parent:
            sys.exit(1)

    try:
        _check_owner(given.path, given.owner)
        found = verify(
            given.path, bytes_per_second=given.bytes_per_second, progress=progress, keep_cached=False
        )
        print(json.dumps({"result": found.as_json()}))
    except CheckpointGoneError as error:
        print(json.dumps({"gone": str(error)}))
    except (CheckpointError, MemoryError) as error:
        print(json.dumps({"error": str(error) or "it needs more memory than verification may use"}))


def _check_owner(path: Path, owner: int | None) -> None:
    """Whoever writes a note can name any path, but learns nothing of the files of others."""
    if not owner:
        return
    try:
        found = path.stat().st_uid
    except FileNotFoundError:
        raise CheckpointGoneError(f"could not verify {path}: it is not there") from None
    except OSError as error:
        raise CheckpointError(f"could not verify {path}: {error.strerror}") from None
    if found != owner:
        raise CheckpointError(f"could not verify {path}: it belongs to user {found}, the run to user {owner}")


def _step_back() -> None:
    """Be the last to get processor and disk, and the first to be killed if memory runs out."""
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, 0, _IDLE_CLASS)


if __name__ == "__main__":
    main()
