"""Where dumps lie: a directory with a file per rank, or one file of JSON snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.hang.dumps.files import RANK, dumps_in, without_strangers
from rankwatch_diagnosis.hang.dumps.parse import DumpError, parse_dump
from rankwatch_diagnosis.hang.dumps.reading import Reading, read_dumps
from rankwatch_diagnosis.hang.dumps.worker import BOM
from rankwatch_diagnosis.hang.snapshot import MAX_RANKS
from rankwatch_diagnosis.memory_bound import bounded_memory

MAX_JSON_BYTES = 2 << 30
"""Of a file that is one JSON document; a file of lines may have any size."""
MEMORY_BYTES = 4 << 30
"""Address space while a JSON file is read: `{}` takes 3 bytes of the file and 80 of memory."""
MAX_LINE_BYTES = 64 << 20
_MAX_SNAPSHOTS = 1 << 20
_PARTS = msgspec.json.Decoder(list[msgspec.Raw] | dict[str, msgspec.Raw])
_INSIDE = ("entries", "trace", "pg_status")
"""What a snapshot holds one of."""


def read_source(path: Path) -> Reading:
    """Everything at `path`; raises UserError where there is nothing to diagnose."""
    try:
        if path.is_dir():
            reading = _read_directory(path)
        elif path.is_file():
            with bounded_memory(MEMORY_BYTES):
                reading = _read_json(path)
        else:
            raise UserError(f"{path} is neither a directory of dumps nor a file")
    except OSError as error:
        raise UserError(f"could not read {path}: {error.strerror or error}") from None
    except MemoryError:
        raise UserError(
            f"{path} needs more than {MEMORY_BYTES >> 30} GiB of memory, or than there is"
        ) from None
    if not reading.snapshots:
        if not reading.broken:
            raise UserError(f"{path} holds no dump")
        rank, reason = min(reading.broken.items())
        raise UserError(f"{path} holds no usable dump: rank {rank}: {reason}")
    return reading


def _read_directory(directory: Path) -> Reading:
    files = dumps_in(directory)
    reading = read_dumps(files.paths)
    if reading.snapshots:
        reading.broken = without_strangers(reading.broken.items(), files)
    return reading


def _read_json(path: Path) -> Reading:
    """A list, an object by rank, or lines; more than one snapshot of a rank shows whether it advances."""
    reading = Reading()
    for rank, document in _documents(path):
        try:
            reading.snapshots.append(parse_dump(document, rank))
        except DumpError as error:
            reading.broken[rank] = str(error)
        if len(reading.snapshots) > _MAX_SNAPSHOTS:
            raise UserError(f"{path} holds more than {_MAX_SNAPSHOTS} snapshots")
    return reading


def _documents(path: Path) -> Iterator[tuple[int, object]]:
    """Rank and document of each snapshot; raises UserError."""
    with path.open("rb") as file:
        first = file.readline(MAX_LINE_BYTES + 1).removeprefix(BOM)
        # A line cut off after some brace may be the beginning of one large document.
        whole = len(first) <= MAX_LINE_BYTES
        lines = whole and first.startswith(b"{") and first.rstrip().endswith(b"}") and file.read(1) != b""
        if not lines and path.stat().st_size > MAX_JSON_BYTES:
            raise UserError(f"{path} is larger than {MAX_JSON_BYTES >> 30} GiB and no file of lines")
        file.seek(0)
        if not lines:
            yield from _of_document(file.read().removeprefix(BOM), path)
            return
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
            if len(line) > MAX_LINE_BYTES:
                raise UserError(f"line {number} of {path} is longer than {MAX_LINE_BYTES >> 20} MiB")
            if line.strip():
                yield from _of_rank(_decode(line.removeprefix(BOM), path), None, path)


def _decode(data: bytes | msgspec.Raw, path: Path) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {error}") from None


def _of_document(data: bytes, path: Path) -> Iterator[tuple[int, object]]:
    """One snapshot decoded after the other: all at once take several times the memory of their text."""
    try:
        parts = _PARTS.decode(data)
    except msgspec.ValidationError:
        raise UserError(f"{path} holds neither a list nor an object of snapshots") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {error}") from None
    if isinstance(parts, dict) and not any(name in parts for name in _INSIDE):
        inner = next(iter(parts.values())) if len(parts) == 1 and not RANK.search(next(iter(parts))) else None
        if inner is not None:  # {"snapshots": ...} and its like
            yield from _of_document(bytes(inner), path)
            return
        for name, part in parts.items():
            match = RANK.search(name)
            yield from _of_rank(_decode(part, path), int(match[1]) if match else None, path)
    elif isinstance(parts, list):
        for position, part in enumerate(parts):
            yield from _of_rank(_decode(part, path), position, path)
    else:
        match = RANK.search(path.name)
        yield from _of_rank(_decode(data, path), int(match[1]) if match else None, path)


def _of_rank(document: object, otherwise: int | None, path: Path) -> Iterator[tuple[int, object]]:
    """One snapshot, or several of one rank in a list; what stands around a snapshot may tell its rank."""
    for each in document if isinstance(document, list) else [document]:
        rank = _rank_of(each, otherwise, path)
        yield rank, _unwrapped(each)


def _unwrapped(document: object) -> object:
    """The snapshot itself, where an object with a rank and a time was put around it."""
    if not isinstance(document, dict) or any(name in document for name in _INSIDE):
        return document
    found = [
        each for each in document.values() if isinstance(each, dict) and any(name in each for name in _INSIDE)
    ]
    if len(found) != 1:
        return document
    return {**{name: document[name] for name in ("time_seconds",) if name in document}, **found[0]}


def _rank_of(document: object, otherwise: int | None, path: Path) -> int:
    rank = document.get("rank", otherwise) if isinstance(document, dict) else otherwise
    if isinstance(rank, str) and rank.isdecimal() and len(rank) < 8:
        rank = int(rank)
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < MAX_RANKS:
        raise UserError(f"{path} holds a snapshot without a rank below {MAX_RANKS}")
    return rank
