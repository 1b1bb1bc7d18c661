"""Shares incidents between the collector that detects them and the one that writes their evidence."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.runtime.turns import excess

MAX_PENDING = 16
"""Incidents that wait for their evidence. Of more, the oldest of the user with most of them are dropped and
counted."""
_MAX_REMEMBERED = 1000
MAX_ROOT_CAUSES = 16
"""Ranks named for one incident. A diagnosis that names more has found no root cause."""


class RootCause(NamedTuple):
    """A rank that the evidence names as the root cause of an incident."""

    rank: int
    state: str
    """hang, desync, lost, ...: see docs/diagnosis.md."""
    phase: str
    """Its open phase; empty where unknown."""


class EvidenceResult(NamedTuple):
    """The result of collecting the evidence of an incident."""

    bundle: Path
    """Directory of the bundle."""
    root_causes: tuple[RootCause, ...]


class IncidentRegistry:
    """Holds open incidents, those that wait for their evidence, and the results. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Mapping[str, Incident] = MappingProxyType({})
        self._pending: list[Incident] = []
        self._served: dict[int, int] = {}
        """User id -> the turn in which it was last served."""
        self._results: dict[int, EvidenceResult] = {}
        self._turn = 0
        self._dropped = 0

    @property
    def open(self) -> Mapping[str, Incident]:
        """Run -> its open incident."""
        return self._open

    @property
    def dropped(self) -> int:
        """Incidents dropped without evidence because too many were pending."""
        return self._dropped

    def update(self, open_now: Mapping[str, Incident], opened: Sequence[Incident]) -> None:
        """Sets the incidents that are open now. `opened` are the new ones among them."""
        with self._lock:
            self._open = MappingProxyType(dict(open_now))
            self._pending.extend(opened)
            for each in excess(self._pending, owner=lambda each: each.owner, most=MAX_PENDING):
                self._pending.remove(each)
                self._dropped += 1
            kept = {incident.number for incident in (*open_now.values(), *self._pending)}
            self._results = {number: each for number, each in self._results.items() if number in kept}

    def next_pending(self) -> Incident | None:
        """Removes and returns the incident whose evidence is next; None where none is pending.

        The users whose runs have incidents take turns.
        """
        with self._lock:
            if not self._pending:
                return None
            incident = min(self._pending, key=lambda each: self._served.get(each.owner, 0))
            self._pending.remove(incident)
            if len(self._served) >= _MAX_REMEMBERED:
                self._served.clear()
            self._turn += 1
            self._served[incident.owner] = self._turn
            return incident

    def set_result(self, incident: Incident, result: EvidenceResult) -> None:
        """Stores the result of an incident until it is closed."""
        with self._lock:
            if any(each.number == incident.number for each in self._open.values()):
                self._results[incident.number] = result

    def result(self, incident: Incident) -> EvidenceResult | None:
        """Returns the result of an open incident; None before its evidence is written."""
        with self._lock:
            return self._results.get(incident.number)
