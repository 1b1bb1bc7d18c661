"""What two collectors tell each other: one sees incidents, the other keeps evidence and finds culprits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from rankwatch_agent.incidents.episodes import Incident

MOST_WAITING = 16
"""Incidents that wait for their evidence; of more, the oldest are given up and counted."""
MOST_CULPRITS = 16
"""Ranks named for one incident: a verdict that names more has found no culprit."""


class Culprit(NamedTuple):
    """A rank that is to blame by the evidence."""

    rank: int
    state: str
    """hang, desync, lost, ...: see docs/diagnosis.md."""
    phase: str
    """The phase it was in; empty where that is not known."""


class Finding(NamedTuple):
    """What the evidence of an incident came to."""

    bundle: Path
    """Its directory."""
    culprits: tuple[Culprit, ...]


class IncidentBoard:
    """Open incidents, those that wait for their evidence, and what was found; any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Mapping[str, Incident] = MappingProxyType({})
        self._waiting: deque[Incident] = deque()
        self._findings: dict[int, Finding] = {}
        self._given_up = 0

    @property
    def open(self) -> Mapping[str, Incident]:
        """Run -> its open incident."""
        return self._open

    @property
    def given_up(self) -> int:
        """Incidents whose evidence was not even tried: too many at once."""
        return self._given_up

    def tell(self, open_now: Mapping[str, Incident], opened: Sequence[Incident]) -> None:
        """Take the incidents that are open now, and those among them that are new."""
        with self._lock:
            self._open = MappingProxyType(dict(open_now))
            self._waiting.extend(opened)
            while len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                self._given_up += 1
            kept = {incident.number for incident in (*open_now.values(), *self._waiting)}
            self._findings = {number: each for number, each in self._findings.items() if number in kept}

    def next_waiting(self) -> Incident | None:
        """The incident whose evidence is to be kept next; None where none waits."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def found(self, incident: Incident, finding: Finding) -> None:
        """Take what came of an incident; forgotten once it is closed."""
        with self._lock:
            if any(each.number == incident.number for each in self._open.values()):
                self._findings[incident.number] = finding

    def finding(self, incident: Incident) -> Finding | None:
        """What was found about an incident that is open; None while nothing is."""
        with self._lock:
            return self._findings.get(incident.number)
