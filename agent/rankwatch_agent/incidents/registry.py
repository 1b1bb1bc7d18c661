"""Shares incidents between the collector that detects them and the one that writes their evidence."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from rankwatch_agent.incidents.episodes import Incident

MAX_PENDING = 16
"""Incidents that wait for their evidence. Of more, the oldest are dropped and counted."""
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
        self._pending: deque[Incident] = deque()
        self._results: dict[int, EvidenceResult] = {}
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
            while len(self._pending) > MAX_PENDING:
                self._pending.popleft()
                self._dropped += 1
            kept = {incident.number for incident in (*open_now.values(), *self._pending)}
            self._results = {number: each for number, each in self._results.items() if number in kept}

    def next_pending(self) -> Incident | None:
        """Removes and returns the incident whose evidence is next; None where none is pending."""
        with self._lock:
            return self._pending.popleft() if self._pending else None

    def set_result(self, incident: Incident, result: EvidenceResult) -> None:
        """Stores the result of an incident until it is closed."""
        with self._lock:
            if any(each.number == incident.number for each in self._open.values()):
                self._results[incident.number] = result

    def result(self, incident: Incident) -> EvidenceResult | None:
        """Returns the result of an open incident; None before its evidence is written."""
        with self._lock:
            return self._results.get(incident.number)
