"""Holds the steps of the last seconds and decides which become traces: failed, slow and resumed ones, those
of incidents, and one in N of the rest.

All nodes must decide alike without asking each other, because the ranks of a step share one trace. What a
hash of (run, step) chooses, and what fails or resumes, is the same for all. Slow steps are found from the
step's own duration, which in synchronous training is nearly the same on all ranks, by a coarse threshold.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from itertools import accumulate, repeat
from operator import mul
from statistics import median_low
from typing import Any, NamedTuple

from rankwatch.conventions.traces import Sampled
from rankwatch_agent.training.notes import StepDone
from rankwatch_agent.training.steps.variation import RunningMedian
from rankwatch_spans.state import RunState, TraceState

MAX_HELD = 20_000
"""Steps of ranks that are held; beyond, the oldest are decided early."""
_MAX_DECIDED = 256
"""Steps of a run whose decision is remembered, for ranks that are read late."""
MAX_SAMPLED_A_MINUTE = 120
"""Steps of one run sampled in a minute, of any reason, so that a run whose steps all fail, or that claims so,
does not take the place of the others."""
MAX_OF_INCIDENT = 20
"""Steps sampled only because of one incident."""

_MAX_RANKS = 1024
"""Processes of a run whose last step is remembered."""
_Key = tuple[int, int, int]
"""Attempt, how often its numbers have begun again, and step."""
_Rank = tuple[int, int]
"""Attempt and rank."""


class _Held(NamedTuple):
    until: float
    """Monotonic time of this agent at which it is decided."""
    ranks: dict[int, StepDone]
    """By rank."""


class _Last(NamedTuple):
    """The last step of a rank."""

    number: int
    start: float
    repeat: int


class _RunSteps:
    """The steps of one run."""

    def __init__(self) -> None:
        self.held: dict[_Key, _Held] = {}
        self.decided: dict[_Key, Sampled | None] = {}
        self.resumed: dict[_Rank, None] = {}
        """Those whose next step is the first after a start or a load."""
        self.last: dict[_Rank, _Last] = {}
        self.pace = Pace()
        self.minute = (0.0, 0)
        """Start of the present minute, and steps sampled in it."""
        self.of_incidents = 0
        self.reasons: dict[_Key, Sampled] = {}
        """Of steps that are not decided, what is known before."""

    def repeat(self, rank: _Rank, step: StepDone, known: RunState | None, until: int) -> int | None:
        """Return how often the numbers have begun again before this step; None if the step was there before.

        known: what the agent before this one has counted. until: the Unix time of that, in nanoseconds.
        """
        last = self.last.get(rank)
        if last is None:
            return 0 if known is None else known.repeats.get(rank[0], 0)
        if step.start == last.start and step.number == last.number:
            return None
        again = step.number <= last.number and step.process.wall(step.end) > until
        return last.repeat + again


def _bound(found: dict[Any, Any], most: int) -> None:
    """Forget the oldest."""
    if len(found) > most:
        del found[next(iter(found))]


class HeldSteps:
    """Decides about steps once `hold_seconds` have passed since their first rank was read.

    incident_since: Unix time in nanoseconds from which a run has an incident; None where it has none.
    sampled: takes the ranks of a step that becomes a trace, at once or one after the other.
    state: how often the numbers of steps have begun again, which outlives the agent.
    """

    def __init__(
        self,
        *,
        cluster: str,
        one_in: int,
        hold_seconds: float,
        incidents: Mapping[str, int],
        sampled: Callable[[StepDone, Sampled], None],
        state: TraceState,
    ) -> None:
        self.dropped = 0
        """Ranks' steps that were not sampled because the run had too many."""
        self._cluster, self._one_in, self._hold = cluster, one_in, hold_seconds
        self._incidents = incidents
        self._sampled = sampled
        self._state, self._until = state, state.until
        self._runs: dict[str, _RunSteps] = {}
        self._count = 0

    def begins(self, run: str, attempt: int, rank: int, *, resumed: bool) -> None:
        """Note a process that began, or loaded a checkpoint."""
        if resumed:
            found = self._of(run).resumed
            found[attempt, rank] = None
            _bound(found, _MAX_RANKS)

    def add(self, step: StepDone, moment: float, *, unfinished: bool = False) -> None:
        """Hold a step of a rank; `moment` is monotonic.

        unfinished: its process ended within it. Steps before it may still come.
        """
        process = step.process
        identity = process.header.identity
        rank = (identity.attempt, identity.rank)
        run, known = self._of(process.run), self._state.runs.get(process.run)
        repeat = run.repeat(rank, step, known, self._until)
        if repeat is None:
            return
        if not unfinished:
            run.last[rank] = _Last(step.number, step.start, repeat)
            _bound(run.last, _MAX_RANKS)
        if repeat:
            step = step._replace(repeat=repeat)
            if known is not None:
                known.repeated(identity.attempt, repeat)
        key = (identity.attempt, repeat, step.number)
        if step.failed or rank in run.resumed:
            self._note_reason(run, key, rank, step)
        if key in run.decided and key not in run.held:
            why = run.decided[key] or run.reasons.pop(key, None)
            if why is not None:
                self._sampled(step, why)
            return
        held = run.held.get(key)
        if held is None:
            held = run.held[key] = _Held(moment + self._hold, {})
        if identity.rank not in held.ranks:
            held.ranks[identity.rank] = step
            self._count += 1

    def _note_reason(self, run: _RunSteps, key: _Key, rank: _Rank, step: StepDone) -> None:
        if step.failed:
            run.reasons[key] = Sampled.FAILED
        else:
            run.reasons.setdefault(key, Sampled.RESUMED)
        _bound(run.reasons, MAX_HELD)
        run.resumed.pop(rank, None)

    def decide(self, moment: float, *, all_of_them: bool = False) -> None:
        """Decide about all steps that were held for long enough."""
        for run in self._runs.values():
            for key in list(self._due(run, moment, all_of_them)):
                self._decide(run, key, moment)

    def forget(self, runs: set[str]) -> None:
        """Forget all runs but these."""
        for run in self._runs.keys() - runs:
            self._count -= sum(len(each.ranks) for each in self._runs[run].held.values())
            del self._runs[run]

    def _of(self, run: str) -> _RunSteps:
        found = self._runs.get(run)
        if found is None:
            found = self._runs[run] = _RunSteps()
        return found

    def _due(self, run: _RunSteps, moment: float, all_of_them: bool) -> Iterator[_Key]:
        """Yield the steps that are due in the order of arrival, which is that of the steps."""
        early = self._count > MAX_HELD
        for key, held in run.held.items():
            if not (all_of_them or early or held.until <= moment):
                return
            yield key

    def _decide(self, run: _RunSteps, key: _Key, moment: float) -> None:
        ranks = [*run.held.pop(key).ranks.values()]
        self._count -= len(ranks)
        why = self._reason(run, key, ranks)
        if why is not None and not self._has_room(run, moment):
            self.dropped += len(ranks)
            why = None
        run.decided[key] = why
        _bound(run.decided, _MAX_DECIDED)
        if why is not None:
            for step in ranks:
                self._sampled(step, why)

    def _reason(self, run: _RunSteps, key: _Key, ranks: list[StepDone]) -> Sampled | None:
        # The low median: one odd rank of a node, which was read twice or hangs, must not decide alone.
        slow = run.pace.add(median_low([each.end - each.start for each in ranks]))
        why = run.reasons.pop(key, None)
        if why is Sampled.FAILED:
            return why
        if self._in_incident(run, ranks[0]):
            return Sampled.INCIDENT
        if why is not None:
            return why
        if slow:
            return Sampled.SLOW
        chosen = by_chance(self._cluster, ranks[0].process.run, key[-1], self._one_in)
        return Sampled.CHANCE if chosen else None

    def _in_incident(self, run: _RunSteps, step: StepDone) -> bool:
        since = self._incidents.get(step.process.run)
        if since is None:
            run.of_incidents = 0
            return False
        if step.process.wall(step.end) < since or run.of_incidents >= MAX_OF_INCIDENT:
            return False
        run.of_incidents += 1
        return True

    def _has_room(self, run: _RunSteps, moment: float) -> bool:
        since, count = run.minute
        if moment - since >= 60.0:
            since, count = moment, 0
        run.minute = (since, count + 1)
        return count < MAX_SAMPLED_A_MINUTE


WINDOW_STEPS = 256
"""Steps that show what is normal."""
LEAST_STEPS = 20
"""Steps before the first one is judged."""
QUANTILE = 0.95
LATE_RATIO = 1.25
"""A slow step is also so much longer than the median: without outliers the slowest 5 % are normal."""
_GRID = 2.0**0.25
"""Thresholds are powers of this. Those of two nodes differ only if one lies between the exact ones."""
_POWERS = tuple(accumulate(repeat(_GRID, 220), mul, initial=1e-6))
"""From a microsecond to more than a thousand years."""


def by_chance(cluster: str, run: str, step: int, one_in: int) -> bool:
    """Return whether the step is one of the 1 in `one_in` that every node samples; 0 samples none."""
    if one_in <= 1:
        return one_in == 1
    digest = blake2b(f"{cluster}\0{run}\0{step}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") % one_in == 0


class Pace:
    """What is normal for the steps of a run, as one node sees it."""

    def __init__(self) -> None:
        self._durations = RunningMedian(WINDOW_STEPS)

    def threshold(self) -> float | None:
        """Return the duration beyond which a step is slow; None while too few steps are known."""
        durations = self._durations
        if len(durations) < LEAST_STEPS:
            return None
        return coarse(max(durations.quantile(QUANTILE), LATE_RATIO * durations.value))

    def add(self, seconds: float) -> bool:
        """Take a step, in the order of steps; returns whether it is slow."""
        threshold = self.threshold()
        self._durations.add(seconds)
        return threshold is not None and seconds > threshold


def coarse(seconds: float) -> float:
    """Return the next power of 2^(1/4), so that two nodes with nearly the same durations have one
    threshold."""
    if seconds <= 0.0:
        return 0.0
    return _POWERS[min(bisect_left(_POWERS, seconds), len(_POWERS) - 1)]
