"""Flight recorders of the run: asked over the sockets beside living boxes, else read from files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rankwatch.flight_recorder import SUFFIX
from rankwatch_agent.training.flight_recorder.client import (
    RECORDERS,
    FlightRecorderClient,
    FlightRecorderError,
)
from rankwatch_diagnosis.hang.dumps.parse import DumpError, parse_dump
from rankwatch_diagnosis.hang.dumps.reading import read_dumps
from rankwatch_diagnosis.hang.snapshot import Snapshot

ANSWER_SECONDS = 3.0
"""For one question: a rank whose process is stopped never answers."""
DUMP_SECONDS = 10.0
_AT_ONCE = 16
_MOST_ASKED = 64
"""Ranks of one node; there are no living boxes of others."""
_MOST_JSON_BYTES = 64 << 20


@dataclass
class Recorders:
    """What the flight recorders gave."""

    snapshots: list[Snapshot] = field(default_factory=list)
    broken: dict[int, str] = field(default_factory=dict)
    """Rank -> why its recorder tells nothing."""
    live: int = 0
    """How many ranks answered themselves."""


def ask(boxes: Iterable[tuple[int, Path]]) -> Recorders:
    """The recorders of living ranks, whose sockets lie beside their boxes; those without one are left out."""
    sockets = [(rank, path.with_suffix(SUFFIX)) for rank, path in boxes]
    sockets = [(rank, path) for rank, path in sockets if path.is_socket()][:_MOST_ASKED]
    found = Recorders()
    if not sockets:
        return found
    with ThreadPoolExecutor(min(_AT_ONCE, len(sockets))) as pool:
        for rank, answer in pool.map(lambda each: _ask_one(*each), sockets):
            _take(found, rank, answer)
    found.live = len(found.snapshots)
    return found


def read(files: Mapping[int, Path]) -> Recorders:
    """The dumps of these ranks, pickles or JSON; nothing in them is executed."""
    found = Recorders()
    pickles: dict[int, Path] = {}
    for rank, path in files.items():
        if path.suffix == ".json":
            _take(found, rank, _read_json(rank, path))
        else:
            pickles[rank] = path
    if pickles:
        reading = read_dumps(pickles, deadline_seconds=DUMP_SECONDS)
        found.snapshots += reading.snapshots
        found.broken |= reading.broken
    found.snapshots.sort(key=lambda each: each.rank)
    return found


def _ask_one(rank: int, socket: Path) -> tuple[int, Snapshot | str]:
    client = FlightRecorderClient(socket, timeout_seconds=ANSWER_SECONDS)
    asked = time.time()  # what it shows was so then, or came later
    try:
        replies = {name: msgspec.json.decode(body) for name, body in client.pull_raw().items()}
        return rank, _parse(replies, rank, taken=asked)
    except (FlightRecorderError, msgspec.MsgspecError, RecursionError, DumpError) as error:
        return rank, str(error)


def _read_json(rank: int, path: Path) -> Snapshot | str:
    try:
        if path.stat().st_size > _MOST_JSON_BYTES:
            return f"is larger than {_MOST_JSON_BYTES >> 20} MiB"
        return _parse(msgspec.json.decode(path.read_bytes()), rank, taken=None)
    except OSError as error:
        return f"could not be read: {error.strerror or error}"
    except (msgspec.MsgspecError, RecursionError, DumpError) as error:
        return str(error)


def _parse(document: object, rank: int, *, taken: float | None) -> Snapshot:
    """One recorder, or the replies of a rank's recorders by their handlers: NCCL's where it has entries."""
    if isinstance(document, dict) and any(name in document for name in RECORDERS):
        replies = [document[name] for name in reversed(RECORDERS) if isinstance(document.get(name), dict)]
        document = next((each for each in replies if each.get("entries")), replies[0] if replies else None)
    if taken is not None and isinstance(document, dict):
        document = {**document, "time_seconds": taken}
    return parse_dump(document, rank)


def _take(found: Recorders, rank: int, answer: Snapshot | str) -> None:
    if isinstance(answer, str):
        found.broken[rank] = answer
    else:
        found.snapshots.append(answer)
