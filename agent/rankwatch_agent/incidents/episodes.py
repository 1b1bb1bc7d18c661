"""Opens and closes incidents by the condition of each run's ranks, and shares them between collectors.

A run has one incident at a time. A stall after the loss of a rank belongs to the same incident, and so do
ranks that are killed because the run has stalled."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from rankwatch.conventions.states import IncidentKind
from rankwatch.untrusted.text import printable
from rankwatch_agent.runtime.turns import excess
from rankwatch_agent.training.conditions import RankCondition, RunCondition

MIN_OPEN_SECONDS = 60.0
"""An incident stays open at least this long. One or two scrapes see it then, since Prometheus commonly
scrapes every 15 to 30 s, and the dumps that flight recorders write at the end of a run are still added."""
MAX_LOSS_AGE_SECONDS = 600.0
"""A lost rank with older progress, in a run that is seen for the first time, was lost before the agent
started. It opens no incident."""
MAX_GONE = 100
"""Open incidents of runs that are not here any more. Of more, the user with most of them loses the oldest."""
_MAX_CLOCK_LEAD_SECONDS = 60.0
"""Progress further in the future is from the clock of an earlier boot: the directory of black boxes
outlived it."""

_Loss = tuple[int, int, float]
"""Rank, process id and last progress. A rank that is lost again differs in one of them."""


class Incident(NamedTuple):
    """One episode of one run. Moments are monotonic, in seconds."""

    number: int
    run: str
    kind: IncidentKind
    opened: float
    since: float
    """Last progress of the run before the incident. Until then it was healthy."""
    condition: RunCondition
    """The local ranks of the present attempt at the opening, without ranks lost in earlier incidents."""

    @property
    def owner(self) -> int:
        return self.condition.ranks[0].owner if self.condition.ranks else 0

    @property
    def name(self) -> str:
        """The run and what happened to it, for messages."""
        return f"run {printable(self.run)}: {self.kind.value}"


class Episodes:
    """Opens and closes incidents.

    stall_seconds: shortest time without progress that is a stall, where ranks have learnt shorter timeouts.
    """

    def __init__(self, stall_seconds: float) -> None:
        self.open: dict[str, Incident] = {}
        """Run -> its open incident."""
        self.totals: dict[tuple[str, IncidentKind], int] = {}
        """Incidents opened by run and kind. Every known run has both kinds."""
        self._stall_seconds = stall_seconds
        self._losses: dict[str, frozenset[_Loss]] = {}
        """Run -> its lost ranks that already belong to an incident."""
        self._number = 0

    def observe(self, runs: Mapping[str, RunCondition], moment: float) -> list[Incident]:
        """Take the condition of all runs. Returns the incidents that this opens."""
        self._forget(runs, moment)
        opened = []
        for run, all_attempts in runs.items():
            condition = all_attempts.present_attempt()
            if run not in self._losses:
                self._losses[run] = _old_losses(condition)
                self.totals |= {(run, kind): 0 for kind in IncidentKind}
            incident = self.open.get(run)
            if incident is not None and _is_over(incident, condition, moment):
                del self.open[run]
                incident = None
            new = _losses(condition) - self._losses[run]
            if incident is None and (kind := self._kind(condition, new)) is not None:
                if kind is IncidentKind.LOST_RANK:
                    condition = _without(condition, self._losses[run])
                opened.append(self._begin(condition, kind, moment))
            self._losses[run] = _losses(all_attempts)
        return opened

    def _kind(self, condition: RunCondition, new_losses: frozenset[_Loss]) -> IncidentKind | None:
        if new_losses:
            return IncidentKind.LOST_RANK
        living = [each for each in condition.ranks if not each.ended]
        moment, least = condition.moment, self._stall_seconds
        if living and all(e.idle_beyond(1.0, moment) and e.idle_seconds(moment) > least for e in living):
            return IncidentKind.STALL
        return None

    def _begin(self, condition: RunCondition, kind: IncidentKind, moment: float) -> Incident:
        self._number += 1
        self.totals[condition.run, kind] += 1
        since = max((each.last_progress for each in condition.ranks), default=moment)
        incident = Incident(self._number, condition.run, kind, moment, since, condition)
        self.open[condition.run] = incident
        return incident

    def _forget(self, runs: Mapping[str, RunCondition], moment: float) -> None:
        gone = {run: each for run, each in self.open.items() if run not in runs}
        over = [run for run, each in gone.items() if _old_enough(each, moment)]
        for run in {*over, *excess(gone, owner=lambda run: gone[run].owner, most=MAX_GONE)}:
            del self.open[run]
        for run in self._losses.keys() - runs.keys() - self.open.keys():
            del self._losses[run]
            for kind in IncidentKind:
                del self.totals[run, kind]


def _is_over(incident: Incident, condition: RunCondition, moment: float) -> bool:
    """Return True if progress has resumed or the run has ended, but never in the first minute."""
    living = any(not each.ended for each in condition.ranks)
    return (resumed(incident, condition) or not living) and _old_enough(incident, moment)


def resumed(incident: Incident, condition: RunCondition) -> bool:
    """Return True if a living rank has made progress since."""
    return any(each.last_progress > incident.opened for each in condition.ranks if not each.ended)


def _old_enough(incident: Incident, moment: float) -> bool:
    return moment - incident.opened >= MIN_OPEN_SECONDS


def _losses(condition: RunCondition) -> frozenset[_Loss]:
    return frozenset(map(_loss, condition.lost))


def _loss(rank: RankCondition) -> _Loss:
    return rank.rank, rank.pid, rank.last_progress


def _without(condition: RunCondition, losses: frozenset[_Loss]) -> RunCondition:
    """Return the condition without ranks of earlier losses, after which the run has gone on."""
    ranks = tuple(each for each in condition.ranks if not (each in condition.lost and _loss(each) in losses))
    return replace(condition, ranks=ranks)


def _old_losses(condition: RunCondition) -> frozenset[_Loss]:
    def recent(loss: _Loss) -> bool:
        return -_MAX_CLOCK_LEAD_SECONDS <= condition.moment - loss[2] <= MAX_LOSS_AGE_SECONDS

    return frozenset(loss for loss in _losses(condition) if not recent(loss))


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
        self.open: Mapping[str, Incident] = MappingProxyType({})
        """Run -> its open incident. Replaced as a whole."""
        self.dropped = 0
        """Incidents dropped without evidence because too many were pending."""
        self._lock = threading.Lock()
        self._pending: list[Incident] = []
        self._served: dict[int, int] = {}
        """User id -> the turn in which it was last served."""
        self._results: dict[int, EvidenceResult] = {}
        self._turn = 0

    def update(self, open_now: Mapping[str, Incident], opened: Sequence[Incident]) -> None:
        """Set the incidents that are open now. `opened` are the new ones among them."""
        with self._lock:
            self.open = MappingProxyType(dict(open_now))
            self._pending.extend(opened)
            for each in excess(self._pending, owner=lambda each: each.owner, most=MAX_PENDING):
                self._pending.remove(each)
                self.dropped += 1
            kept = {incident.number for incident in (*open_now.values(), *self._pending)}
            self._results = {number: each for number, each in self._results.items() if number in kept}

    def next_pending(self) -> Incident | None:
        """Remove and returns the incident whose evidence is next; None where none is pending.

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
        """Store the result of an incident until it is closed."""
        with self._lock:
            if any(each.number == incident.number for each in self.open.values()):
                self._results[incident.number] = result

    def result(self, incident: Incident) -> EvidenceResult | None:
        """Return the result of an open incident; None before its evidence is written."""
        with self._lock:
            return self._results.get(incident.number)
