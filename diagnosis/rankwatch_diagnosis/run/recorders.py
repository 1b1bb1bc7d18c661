"""Flight recorders of the run: asked over the sockets beside living boxes, else read from files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rankwatch_agent.training.flight_recorder.ask import (
    FlightRecorderClient,
    FlightRecorderError,
    ask_all,
    main_recorder,
    socket_beside,
)
from rankwatch_diagnosis.hang.from_dump import snapshot_of
from rankwatch_diagnosis.hang.worker import Reading, read_dumps

ANSWER_SECONDS = 3.0
"""For one question: a rank whose process is stopped never answers."""
DUMP_SECONDS = 10.0
_AT_ONCE = 16
_MOST_ASKED = 64
"""Ranks of one node; there are no living boxes of others."""


@dataclass
class Recorders(Reading):
    """What the flight recorders gave."""

    live: int = 0
    """How many ranks answered themselves."""


def ask(boxes: Iterable[tuple[int, Path]]) -> Recorders:
    """The recorders of living ranks, whose sockets lie beside their boxes; those without one are left out."""
    sockets = ((rank, socket) for rank, path in boxes if (socket := socket_beside(path)) is not None)
    clients = {
        rank: FlightRecorderClient(socket, timeout_seconds=ANSWER_SECONDS)
        for rank, socket in islice(sockets, _MOST_ASKED)
    }
    found = Recorders()
    for rank, answer in ask_all(clients.items(), at_once=_AT_ONCE):
        client = clients[rank]
        try:
            if isinstance(answer, FlightRecorderError):
                raise answer
            dump = client.parse(answer[main_recorder(answer)])
        except FlightRecorderError as error:
            found.broken[rank] = str(error)
            continue
        dump.time_seconds = client.asked_at
        found.snapshots.append(snapshot_of(dump, rank))
    found.live = len(found.snapshots)
    return found


def read(files: Mapping[int, Path]) -> Recorders:
    """The dumps of these ranks, pickles or JSON; nothing in them is executed."""
    reading = read_dumps(files, deadline_seconds=DUMP_SECONDS) if files else Reading()
    return Recorders(reading.snapshots, reading.broken)
