"""Finds dumps where people keep them: a directory with a file per rank, or one file of JSON snapshots."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.flight_recorder.parse import (
    BOM,
    TORCHCOMMS,
    DumpError,
    load_json,
    parse_document,
)
from rankwatch_diagnosis.hang.from_dump import snapshot_of
from rankwatch_diagnosis.hang.job import MAX_RANKS
from rankwatch_diagnosis.hang.worker import Reading, bounded_memory, read_dumps, room_for
from rankwatch_diagnosis.opening import open_bytes

MAX_JSON_BYTES = 2 << 30
"""Of a file that is one JSON document; a file of lines may have any size."""
MEMORY_BYTES = 4 << 30
"""By which the address space may grow while a JSON file is read."""
MAX_LINE_BYTES = 64 << 20
_MAX_SNAPSHOTS = 1 << 20
_PARTS = msgspec.json.Decoder(list[msgspec.Raw] | dict[str, msgspec.Raw])
_DUMP_KEYS = ("entries", "trace", "pg_status")
"""A dump has one of them."""
_RANK = re.compile(r"(\d{1,7})(?:\.[A-Za-z][A-Za-z0-9]*)*$")
"""The number at the end of a name, before suffixes such as .json and .pickle."""


def read_source(path: Path) -> Reading:
    """Read everything at `path`; raise UserError where there is nothing to diagnose."""
    try:
        if path.is_dir():
            reading = _read_directory(path)
        elif path.is_file():
            with bounded_memory(min(MEMORY_BYTES, room_for(path.stat().st_size))):
                reading = _read_json(path)
        else:
            raise UserError(f"{path} is neither a directory of dumps nor a file")
    except OSError as error:
        raise UserError(f"could not read {path}: {error.strerror or error}") from None
    except MemoryError:
        raise UserError(f"{path} needs far more memory than its size, or than there is") from None
    if TORCHCOMMS in reading.broken.values():  # no evidence against these ranks
        raise UserError(f"{path} cannot be judged: {TORCHCOMMS}")
    if not reading.snapshots:
        if not reading.broken:
            raise UserError(f"{path} holds no dump")
        rank, reason = min(reading.broken.items())
        raise UserError(f"{path} holds no usable dump: rank {rank}: {reason}")
    return reading


class _NamedFile(NamedTuple):
    """A file whose name ends in a rank's number."""

    path: Path
    rank: int
    pattern: tuple[str, str]
    """The name without the number."""


def _read_directory(directory: Path) -> Reading:
    files = _dump_files(directory)
    reading = read_dumps({each.rank: each.path for each in files})
    if reading.snapshots:
        # A file that is called like no other and is no dump was never meant to be one.
        alike = Counter(each.pattern for each in files)
        others = {each.rank for each in files if max(alike.values()) > 1 and alike[each.pattern] == 1}
        reading.broken = {rank: reason for rank, reason in reading.broken.items() if rank not in others}
    return reading


def _dump_files(directory: Path) -> list[_NamedFile]:
    """Find one file per rank; raise UserError where there are none.

    Where two name one rank, as a log beside the dumps may, the one whose pattern is commoner counts.
    """
    named = [
        _NamedFile(path, int(found[1]), (path.name[: found.start()], path.name[found.end(1) :]))
        for path in sorted(directory.iterdir())
        if (found := _RANK.search(path.name)) is not None and not path.is_dir()
    ]
    alike = Counter(each.pattern for each in named)
    chosen: dict[int, _NamedFile] = {}
    for each in named:
        if each.rank >= MAX_RANKS:
            raise UserError(
                f"{each.path.name} in {directory} names rank {each.rank}; expected one below {MAX_RANKS}"
            )
        other = chosen.get(each.rank)
        if other is not None and alike[other.pattern] == alike[each.pattern]:
            names = f"{other.path.name} and {each.path.name}"
            raise UserError(f"{names} in {directory} are both dumps of rank {each.rank}")
        if other is None or alike[each.pattern] > alike[other.pattern]:
            chosen[each.rank] = each
    if not chosen:
        raise UserError(f"{directory} holds no file whose name ends in a rank's number, such as _dump_3")
    return list(chosen.values())


def _read_json(path: Path) -> Reading:
    """Read a list, an object by rank, or lines; more than one snapshot of a rank shows if it advances."""
    reading = Reading()
    for rank, document in _documents(path, reading):
        try:
            reading.snapshots.append(snapshot_of(parse_document(document), rank))
        except DumpError as error:
            reading.broken[rank] = str(error)
        if len(reading.snapshots) > _MAX_SNAPSHOTS:
            raise UserError(f"{path} holds more than {_MAX_SNAPSHOTS} snapshots")
    return reading


def _documents(path: Path, reading: Reading) -> Iterator[tuple[int, object]]:
    """Yield rank and document of each snapshot; note in `reading` what cannot be read. Raise UserError."""
    with open_bytes(path) as file:
        first = file.readline(MAX_LINE_BYTES + 1).removeprefix(BOM)
        # A line cut off after some brace may be the beginning of one large document.
        whole = len(first) <= MAX_LINE_BYTES
        lines = whole and first.startswith(b"{") and first.rstrip().endswith(b"}") and file.read(1) != b""
        if not lines and path.stat().st_size > MAX_JSON_BYTES:
            raise UserError(f"{path} is larger than {MAX_JSON_BYTES >> 30} GiB and no file of lines")
        file.seek(0)
        if not lines:
            yield from _of_document(file.read().removeprefix(BOM), path, reading)
            return
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
            if len(line) > MAX_LINE_BYTES:
                raise UserError(f"line {number} of {path} is longer than {MAX_LINE_BYTES >> 20} MiB")
            if line.strip():
                yield from _of_text(line.removeprefix(BOM), None, path, reading)


def _of_text(
    text: bytes | msgspec.Raw, rank: int | None, path: Path, reading: Reading
) -> Iterator[tuple[int, object]]:
    """Yield the snapshots in one JSON text; `rank` is known where a name or a position gives it."""
    try:
        document = load_json(text)
    except DumpError as error:
        if rank is None:
            reading.skipped_lines += 1
        else:
            reading.broken[rank] = str(error)
    else:
        yield from _of_rank(document, rank, path)


def _of_document(data: bytes, path: Path, reading: Reading) -> Iterator[tuple[int, object]]:
    """Decode one snapshot after the other: all at once take several times the memory of their text."""
    try:
        parts = _PARTS.decode(data)
    except msgspec.ValidationError:
        raise UserError(f"{path} holds neither a list nor an object of snapshots") from None
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise UserError(f"{path} is no JSON: {error}") from None
    if isinstance(parts, dict) and not any(name in parts for name in _DUMP_KEYS):
        inner = (
            next(iter(parts.values())) if len(parts) == 1 and _rank_in(next(iter(parts))) is None else None
        )
        if inner is not None:  # {"snapshots": ...} and its like
            yield from _of_document(bytes(inner), path, reading)
            return
        for name, part in parts.items():
            yield from _of_text(part, _rank_in(name), path, reading)
    elif isinstance(parts, list):
        for position, part in enumerate(parts):
            yield from _of_text(part, position, path, reading)
    else:
        yield from _of_text(data, _rank_in(path.name), path, reading)


def _rank_in(name: str) -> int | None:
    """Return the rank at the end of a name."""
    found = _RANK.search(name)
    return int(found[1]) if found else None


def _of_rank(document: object, otherwise: int | None, path: Path) -> Iterator[tuple[int, object]]:
    """Yield one snapshot, or several of one rank in a list; an object around a snapshot may hold its rank."""
    for each in document if isinstance(document, list) else [document]:
        yield _rank_of(each, otherwise, path), _unwrapped(each)


def _unwrapped(document: object) -> object:
    """Return the dump itself, where an object with a rank and a time was put around it."""
    if not isinstance(document, dict) or any(name in document for name in _DUMP_KEYS):
        return document
    found = [
        each
        for each in document.values()
        if isinstance(each, dict) and any(name in each for name in _DUMP_KEYS)
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
