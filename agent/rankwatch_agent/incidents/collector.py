"""Collector `incidents`: runs of this node that stall or lost a rank, and the root causes in the evidence.

It also asks a rank that is slow among those of its node for traces of its slowest later steps. The rules name
stragglers over all nodes, minutes later and elsewhere. The agent sees its own node only, so this raises no
alert: all that a wrong guess costs is the traces of a rank that was started to make them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rankwatch import profiling
from rankwatch.conventions.states import IncidentKind
from rankwatch_agent.incidents.diagnosis import root_causes_of
from rankwatch_agent.incidents.dumps import ask_rank
from rankwatch_agent.incidents.episodes import Episodes, IncidentRegistry, resumed
from rankwatch_agent.incidents.rank_files import stopped_ranks
from rankwatch_agent.runtime.collector import Collection, Schedule, Series, sample
from rankwatch_agent.training.conditions import RankCondition, RunCondition, RunConditions


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
        """Compare the runs with their previous condition."""
        runs, moment = self._conditions.runs, self._monotonic()
        opened = self._episodes.observe(runs, moment)
        self._slow_ranks.observe(runs, moment)
        self._registry.update(self._episodes.open, opened)
        return Collection(series=[*self._counts(), *self._root_causes()])

    def _counts(self) -> Iterator[Series]:
        for (run, kind), count in self._episodes.totals.items():
            incident = self._episodes.open.get(run)
            yield sample("rankwatch_incidents_total", (run, kind.value), count)
            yield sample(
                "rankwatch_incident_open",
                (run, kind.value),
                float(incident is not None and incident.kind is kind),
            )

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
                yield sample(
                    "rankwatch_incident_root_cause",
                    (incident.run, str(cause.rank), cause.state, cause.phase),
                    1.0,
                )


logger = logging.getLogger(__name__)

WINDOW_SECONDS = 60.0
"""Time over which ranks are compared; a rank is named if it is the slow one in two such windows in a row."""
LEAST_STEPS = 20
"""Steps of a rank in a window."""
RATIO = 1.25
"""A slow rank's own time for each step, over the median of the others with its role."""
PAUSE_SECONDS = 1800.0
"""Until a rank is asked again."""


class _Done(NamedTuple):
    """What a process of a rank had done at the beginning of a window."""

    started: float | None
    steps: int
    local_seconds: float


@dataclass
class _Run:
    """The present window of a run."""

    since: float
    done: dict[Path, _Done]
    suspect: Path | None = None
    asked: dict[Path, float] = field(default_factory=dict)
    requests: int = 0


class SlowRanks:
    """Compares the ranks of each run. window_seconds: see WINDOW_SECONDS."""

    def __init__(self, *, window_seconds: float = WINDOW_SECONDS) -> None:
        self._window_seconds = window_seconds
        self._runs: dict[str, _Run] = {}

    def observe(self, runs: Mapping[str, RunCondition], moment: float) -> None:
        """Take the condition of all runs. `moment` is monotonic."""
        for gone in self._runs.keys() - runs.keys():
            del self._runs[gone]
        for name, condition in runs.items():
            run = self._runs.get(name)
            if run is None:
                self._runs[name] = _Run(moment, _done(condition))
            elif moment - run.since >= self._window_seconds:
                self._judge(run, condition, moment)

    def _judge(self, run: _Run, condition: RunCondition, moment: float) -> None:
        slow = _slowest(condition.ranks, run.done)
        named = slow is not None and slow.path == run.suspect
        run.since, run.done = moment, _done(condition)
        run.suspect = None if slow is None else slow.path
        if slow is None or not named or run.requests >= profiling.MOST_REQUESTS:
            return
        if moment - run.asked.get(slow.path, float("-inf")) < PAUSE_SECONDS:
            return
        run.asked[slow.path] = moment
        run.requests += 1
        try:
            ask_rank(slow)
        except OSError as error:
            logger.info("could not ask rank %d for traces: %s", slow.rank, error.strerror)


def _done(condition: RunCondition) -> dict[Path, _Done]:
    return {each.path: _Done(each.started, each.steps, each.local_seconds) for each in condition.ranks}


def _slowest(ranks: Sequence[RankCondition], before: Mapping[Path, _Done]) -> RankCondition | None:
    """Return the rank that is slowest beside others of its role; None where none stands out."""
    own = dict(_own_seconds(ranks, before))
    ratios: dict[Path, float] = {}
    for rank in ranks:
        others = [
            own[each.path]
            for each in ranks
            if each.path in own and each.path != rank.path and each.role == rank.role
        ]
        if rank.path in own and others and (usual := median(others)) > 0.0:
            ratios[rank.path] = own[rank.path] / usual
    slowest = max(ratios, key=lambda path: ratios[path], default=None)
    if slowest is None or ratios[slowest] < RATIO:
        return None
    return next(each for each in ranks if each.path == slowest)


def _own_seconds(
    ranks: Sequence[RankCondition], before: Mapping[Path, _Done]
) -> Iterator[tuple[Path, float]]:
    """Yield each living rank's own time for a step since the beginning of the window."""
    for rank in ranks:
        done = before.get(rank.path)
        if done is None or rank.ended or done.started != rank.started:
            continue
        steps = rank.steps - done.steps
        if steps >= LEAST_STEPS:
            yield rank.path, (rank.local_seconds - done.local_seconds) / steps
