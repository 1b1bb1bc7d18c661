"""Where dumps lie: a directory with a file per rank, or one file of JSON snapshots."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rankwatch_agent.diagnosis.hang.parse import DumpError, parse_dump
from rankwatch_agent.diagnosis.hang.reading import Reading, read_dumps
from rankwatch_agent.diagnosis.hang.snapshot import MAX_RANKS
from rankwatch_agent.diagnosis.hang.worker import BOM
from rankwatch_agent.user_error import UserError

MAX_JSON_BYTES = 2 << 30
"""Of a file that is one JSON document; a file of lines may have any size."""
MAX_LINE_BYTES = 64 << 20
_MAX_SNAPSHOTS = 1 << 20
_RANK = re.compile(r"(\d{1,7})(?:\.[A-Za-z][A-Za-z0-9]*)*$")
"""The number at the end of a name, before suffixes such as .json and .pickle."""


def read_source(path: Path) -> Reading:
    """Everything at `path`; raises UserError where there is nothing to diagnose."""
    try:
        if path.is_dir():
            reading = read_dumps(_dumps_in(path))
        elif path.is_file():
            reading = _read_json(path)
        else:
            raise UserError(f"{path} is neither a directory of dumps nor a file")
    except OSError as error:
        raise UserError(f"could not read {path}: {error.strerror or error}") from None
    if not reading.snapshots:
        rank, reason = next(iter(sorted(reading.broken.items())), (0, "there is none"))
        raise UserError(f"{path} holds no usable dump: rank {rank}: {reason}")
    return reading


def _dumps_in(directory: Path) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for path in sorted(directory.iterdir()):
        match = _RANK.search(path.name)
        if match is None or path.is_dir():
            continue
        rank = int(match[1])
        if rank >= MAX_RANKS:
            raise UserError(f"{path.name} in {directory} names rank {rank}; expected one below {MAX_RANKS}")
        if rank in found:
            raise UserError(
                f"{found[rank].name} and {path.name} in {directory} are both dumps of rank {rank}"
            )
        found[rank] = path
    if not found:
        raise UserError(f"{directory} holds no file whose name ends in a rank's number, such as _dump_3")
    return found


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
        lines = first.startswith(b"{") and first.rstrip().endswith(b"}") and file.read(1) != b""
        if not lines and path.stat().st_size > MAX_JSON_BYTES:
            raise UserError(f"{path} is larger than {MAX_JSON_BYTES >> 30} GiB and no file of lines")
        file.seek(0)
        if not lines:
            yield from _of_document(_decode(file.read(), path), path)
            return
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
            if len(line) > MAX_LINE_BYTES:
                raise UserError(f"line {number} of {path} is longer than {MAX_LINE_BYTES >> 20} MiB")
            if line.strip():
                document = _decode(line, path)
                yield _rank_of(document, None, path), document


def _decode(data: bytes, path: Path) -> object:
    try:
        return msgspec.json.decode(data.removeprefix(BOM))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {error}") from None


def _of_document(document: object, path: Path) -> Iterator[tuple[int, object]]:
    if isinstance(document, list):
        for position, each in enumerate(document):
            yield _rank_of(each, position, path), each
    elif isinstance(document, dict) and ("entries" in document or "pg_status" in document):
        match = _RANK.search(path.name)
        yield _rank_of(document, int(match[1]) if match else None, path), document
    elif isinstance(document, dict):
        for name, each in document.items():
            match = _RANK.search(name)
            yield _rank_of(each, int(match[1]) if match else None, path), each
    else:
        raise UserError(f"{path} holds neither a list nor an object of snapshots")


def _rank_of(document: object, otherwise: int | None, path: Path) -> int:
    rank = document.get("rank", otherwise) if isinstance(document, dict) else otherwise
    if isinstance(rank, str) and rank.isdecimal() and len(rank) < 8:
        rank = int(rank)
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < MAX_RANKS:
        raise UserError(f"{path} holds a snapshot without a rank below {MAX_RANKS}")
    return rank
