"""Collector `incidents`: runs of this node that stall or lost a rank, and the root causes in the evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rankwatch.conventions.metrics import metric
from rankwatch.conventions.states import IncidentKind
from rankwatch_agent.incidents.diagnosis import root_causes_of
from rankwatch_agent.incidents.episodes import Episodes, resumed
from rankwatch_agent.incidents.rank_state import stopped_ranks
from rankwatch_agent.incidents.registry import IncidentRegistry
from rankwatch_agent.incidents.slow_ranks import SlowRanks
from rankwatch_agent.runtime.collector import Collection, Schedule, Series
from rankwatch_agent.training.conditions import RunConditions

_TOTAL = metric("rankwatch_incidents_total")
_OPEN = metric("rankwatch_incident_open")
_ROOT_CAUSE = metric("rankwatch_incident_root_cause")


class IncidentsCollector:
    """Opens and closes incidents.

    conditions: what the collector `ranks` knows of the ranks. Without it there are no incidents.
    registry: receives the open incidents and holds the results of their evidence.
    stall_seconds: shortest time without progress of all ranks that is an incident.
    slow_ranks: asks slow ranks for traces.
    """

    name = "incidents"

    def __init__(
        self,
        *,
        conditions: RunConditions,
        registry: IncidentRegistry,
        stall_seconds: float,
        schedule: Schedule,
        slow_ranks: SlowRanks | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._conditions = conditions
        self._registry = registry
        self._episodes = Episodes(stall_seconds)
        self._slow_ranks = slow_ranks or SlowRanks()
        self._monotonic = monotonic

    def collect(self) -> Collection:
        """Compares the runs with their previous condition."""
        runs, moment = self._conditions.runs, self._monotonic()
        opened = self._episodes.observe(runs, moment)
        self._slow_ranks.observe(runs, moment)
        self._registry.update(self._episodes.open, opened)
        return Collection(series=[*self._counts(), *self._root_causes()])

    def _counts(self) -> Iterator[Series]:
        for (run, kind), count in self._episodes.totals.items():
            incident = self._episodes.open.get(run)
            yield Series(_TOTAL, (run, kind.value), count)
            yield Series(_OPEN, (run, kind.value), float(incident is not None and incident.kind is kind))

    def _root_causes(self) -> Iterator[Series]:
        for incident in self._episodes.open.values():
            condition = self._conditions.runs.get(incident.run)
            stall = incident.kind is IncidentKind.STALL
            if stall and condition is not None and resumed(incident, condition):
                continue  # no rank holds the run up now, and evidence taken since then shows no stall
            result = self._registry.result(incident)
            causes = result.root_causes if result else root_causes_of(incident)
            if not causes and stall:
                causes = stopped_ranks(condition or incident.condition)
            for cause in causes:
                yield Series(_ROOT_CAUSE, (incident.run, str(cause.rank), cause.state, cause.phase), 1.0)
