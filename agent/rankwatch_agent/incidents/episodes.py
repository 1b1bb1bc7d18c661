"""When an incident begins and ends, out of how the ranks of each run are.

A run has one incident at a time. A stall after a rank was lost is the same incident, and so are the ranks
that somebody kills because the run stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from rankwatch.conventions.incidents import IncidentKind
from rankwatch.settings import printable
from rankwatch_agent.training.conditions import RankCondition, RunCondition

LEAST_OPEN_SECONDS = 60.0
"""An incident is open at least this long, so that a scrape or two see it. Prometheus commonly scrapes each 15
to 30 s. A flight recorder's dumps of the end of a run are still taken in during this time."""
OLD_NEWS_SECONDS = 600.0
"""A rank that went longer without progress, and was lost when its run was first seen, was lost before this
agent started: no incident of today."""
_READING_SECONDS = 60.0
"""Progress later than the moment it was looked at by more than this is of a clock before the last boot: in a
directory that outlives one, black boxes of ranks that the boot killed are left."""

_Death = tuple[int, int, float]
"""Rank, process id and last progress: a rank that is lost once more differs in one of them."""


class Incident(NamedTuple):
    """One episode of one run. Moments are monotonic, in seconds."""

    number: int
    run: str
    kind: IncidentKind
    opened: float
    since: float
    """Last progress of the run before: what came before it is healthy."""
    condition: RunCondition
    """The local ranks of the present attempt as they were when it was opened; where one was lost, without
    those lost before."""

    @property
    def name(self) -> str:
        """The run and what happened to it, for people."""
        return f"run {printable(self.run)}: {self.kind.value}"


class Episodes:
    """Opens and closes incidents.

    stall_seconds: a run whose ranks learnt shorter timeouts than this is given this long.
    """

    def __init__(self, stall_seconds: float) -> None:
        self.open: dict[str, Incident] = {}
        """Run -> its open incident."""
        self.totals: dict[tuple[str, IncidentKind], int] = {}
        """Incidents opened by run and kind; every run that is followed has both."""
        self._stall_seconds = stall_seconds
        self._deaths: dict[str, frozenset[_Death]] = {}
        """Run -> its lost ranks that belong to an incident already."""
        self._number = 0

    def observe(self, runs: Mapping[str, RunCondition], moment: float) -> list[Incident]:
        """Take how the runs are; the incidents that this opens."""
        self._forget(runs, moment)
        opened = []
        for run, everything in runs.items():
            condition = everything.present_attempt()
            if run not in self._deaths:
                self._deaths[run] = _old_deaths(condition)
                self.totals |= {(run, kind): 0 for kind in IncidentKind}
            incident = self.open.get(run)
            if incident is not None and _is_over(incident, condition, moment):
                del self.open[run]
                incident = None
            new = _deaths(condition) - self._deaths[run]
            if incident is None and (kind := self._kind(condition, new)) is not None:
                if kind is IncidentKind.LOST_RANK:
                    condition = _without(condition, self._deaths[run])
                opened.append(self._begin(condition, kind, moment))
            self._deaths[run] = _deaths(everything)
        return opened

    def _kind(self, condition: RunCondition, new_deaths: frozenset[_Death]) -> IncidentKind | None:
        if new_deaths:
            return IncidentKind.LOST_RANK
        living = [each for each in condition.ranks if not each.ended]
        if living and all(self._stands(each, condition.moment) for each in living):
            return IncidentKind.STALL
        return None

    def _stands(self, rank: RankCondition, moment: float) -> bool:
        return rank.idle_beyond(1.0, moment) and rank.idle_seconds(moment) > self._stall_seconds

    def _begin(self, condition: RunCondition, kind: IncidentKind, moment: float) -> Incident:
        self._number += 1
        self.totals[condition.run, kind] += 1
        since = max((each.last_progress for each in condition.ranks), default=moment)
        incident = Incident(self._number, condition.run, kind, moment, since, condition)
        self.open[condition.run] = incident
        return incident

    def _forget(self, runs: Mapping[str, RunCondition], moment: float) -> None:
        for run, incident in list(self.open.items()):
            if run not in runs and _old_enough(incident, moment):
                del self.open[run]
        for run in self._deaths.keys() - runs.keys() - self.open.keys():
            del self._deaths[run]
            for kind in IncidentKind:
                del self.totals[run, kind]


def _is_over(incident: Incident, condition: RunCondition, moment: float) -> bool:
    """Whether progress resumed since, or the run ended; never in the first minute."""
    living = any(not each.ended for each in condition.ranks)
    return (resumed(incident, condition) or not living) and _old_enough(incident, moment)


def resumed(incident: Incident, condition: RunCondition) -> bool:
    """Whether a living rank has made progress since."""
    return any(each.last_progress > incident.opened for each in condition.ranks if not each.ended)


def _old_enough(incident: Incident, moment: float) -> bool:
    return moment - incident.opened >= LEAST_OPEN_SECONDS


def _deaths(condition: RunCondition) -> frozenset[_Death]:
    return frozenset(map(_death, condition.lost))


def _death(rank: RankCondition) -> _Death:
    return rank.rank, rank.pid, rank.last_progress


def _without(condition: RunCondition, deaths: frozenset[_Death]) -> RunCondition:
    """The condition without ranks whose loss was told before: the run has gone on since."""
    ranks = tuple(each for each in condition.ranks if not (each in condition.lost and _death(each) in deaths))
    return replace(condition, ranks=ranks)


def _old_deaths(condition: RunCondition) -> frozenset[_Death]:
    def recent(death: _Death) -> bool:
        return -_READING_SECONDS <= condition.moment - death[2] <= OLD_NEWS_SECONDS

    return frozenset(death for death in _deaths(condition) if not recent(death))
