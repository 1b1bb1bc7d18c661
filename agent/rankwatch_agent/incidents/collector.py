"""Collector `incidents`: runs of this node that stand still or lost a rank, and whom the evidence names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rankwatch.conventions import metric
from rankwatch.conventions.incidents import IncidentKind
from rankwatch_agent.incidents.episodes import Episodes, resumed
from rankwatch_agent.incidents.registry import IncidentBoard
from rankwatch_agent.incidents.verdict import culprits_of
from rankwatch_agent.runtime.collector import Collection, Schedule, Series
from rankwatch_agent.training.conditions import RunConditions

_TOTAL = metric("rankwatch_incidents_total")
_OPEN = metric("rankwatch_incident_open")
_CULPRIT = metric("rankwatch_incident_root_cause")


class IncidentsCollector:
    """Opens and closes incidents.

    conditions: what the collector `ranks` says about the ranks; without it nothing is ever seen.
    board: is told which incidents are open, and tells what was found about them.
    stall_seconds: least time without progress of all ranks that is an incident.
    """

    name = "incidents"

    def __init__(
        self,
        *,
        conditions: RunConditions,
        board: IncidentBoard,
        stall_seconds: float,
        schedule: Schedule,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._conditions = conditions
        self._board = board
        self._episodes = Episodes(stall_seconds)
        self._monotonic = monotonic

    def collect(self) -> Collection:
        """Compare the runs with how they were."""
        episodes = self._episodes
        opened = episodes.observe(self._conditions.runs, self._monotonic())
        self._board.tell(episodes.open, opened)
        return Collection(series=[*self._counts(), *self._culprits()])

    def _counts(self) -> Iterator[Series]:
        for (run, kind), count in self._episodes.totals.items():
            incident = self._episodes.open.get(run)
            yield Series(_TOTAL, (run, kind.value), count)
            yield Series(_OPEN, (run, kind.value), float(incident is not None and incident.kind is kind))

    def _culprits(self) -> Iterator[Series]:
        for incident in self._episodes.open.values():
            condition = self._conditions.runs.get(incident.run)
            stall = incident.kind is IncidentKind.STALL
            if stall and condition is not None and resumed(incident, condition):
                continue  # nobody is waited for now, and evidence that was taken after that is of no stall
            finding = self._board.finding(incident)
            for culprit in finding.culprits if finding else culprits_of(incident):
                labels = (incident.run, str(culprit.rank), culprit.state, culprit.phase)
                yield Series(_CULPRIT, labels, 1.0)
