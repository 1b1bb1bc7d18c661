"""What the steps of the last minutes took on average, for each rank, and the series of these means.

Prometheus could divide the rates of two counters, but in a run of 16,384 ranks that is most of what its rules
would do. The agent knows the same sums, at the same moment, and a mean of a rank is a subtraction to it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from rankwatch.conventions.metrics import TOGETHER
from rankwatch.conventions.states import STEP_PHASES, SlowPhase
from rankwatch.conventions.vocabulary import TOKENS
from rankwatch_agent.runtime.collector import Series, sample
from rankwatch_agent.training.series.selection import half_series
from rankwatch_agent.training.steps.assembly import StepAssembler

_LOOKS = 30
"""Looks kept of a window: its length is true to one part in so many."""
_OF_LOCAL = frozenset(
    (
        *("known_seconds", "local_seconds", "arrival_seconds", "compute_seconds"),
        *("late_steps", "late_seconds"),
        *("local", "work", "local_and_work"),
    )
)
"""Figures, and terms of the variation, that only steps have whose local time is known."""
_PAIRS = MappingProxyType({"work": ("local", "work"), "microbatches": ("forward", "backward")})
"""By what explains the variation: the two terms that vary together because of it."""


class _Look(NamedTuple):
    """The totals of a rank at one moment."""

    moment: float
    steps: int
    local_steps: int
    """Those whose local time is known."""
    sums: Mapping[str, float]
    """By figure, or slow phase."""
    terms: Mapping[str, float]
    """Of the variation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Covariation:
    """How a rank's time varies together with what may explain it, relative to the time."""

    covariance: float
    correlation: float | None
    """None where one of both does not vary."""
    sigma: float | None
    """Standard deviation of a step's own time that is explained; None where nothing is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecentMeans:
    """Means per step, in seconds, over the steps that were settled within the window; what follows from local
    time is over those of them whose local time is known."""

    step_seconds: float
    known_seconds: float
    """Of a step whose local time is known."""
    local_seconds: float
    arrival_seconds: float
    """Local time with sends and receives: when the rank reaches the collectives."""
    compute_seconds: float
    """Local time without waiting for data, checkpoints and evaluation."""
    phase_seconds: Mapping[SlowPhase, float]
    tokens: float
    """0 where the rank reports none."""
    late_steps_ratio: float
    late_seconds: float
    late_long_seconds: float
    """The same over twice the window."""
    variance: float | None
    """Mean squared relative deviation of local time from its median; None while no step was judged."""
    together: Mapping[str, Covariation] = field(default_factory=dict)
    """By what may explain the variation: `work`, `microbatches`."""

    @property
    def waiting_ratio(self) -> float:
        """Share of the step in which the rank is blocked in collectives."""
        return 1.0 - self.local_seconds / self.known_seconds if self.known_seconds > 0 else 0.0

    @property
    def data_wait_ratio(self) -> float:
        """Share of the step in which the rank waits for data."""
        wait = self.phase_seconds[SlowPhase.DATA_LOADING]
        return wait / self.step_seconds if self.step_seconds > 0 else 0.0


class RecentSteps:
    """Remembers the totals of a rank for two windows of so many seconds."""

    def __init__(self, window_seconds: float) -> None:
        self.means: RecentMeans | None = None
        """None while the rank completes no step, or its own time is not known."""
        self.step_seconds: float | None = None
        """Mean of a step; None while the rank completes none."""
        self._window = window_seconds
        self._looks: deque[_Look] = deque()
        self._long: deque[tuple[float, int, float]] = deque()
        """Moment, steps whose local time is known, and late seconds, for twice the window."""

    def take(self, steps: StepAssembler, moment: float) -> None:
        """Take the totals of the rank as they are now; `moment` is monotonic, in seconds."""
        now = _look(steps, moment)
        looks, long = self._looks, self._long
        if not looks or moment - looks[-1].moment >= self._window / _LOOKS:
            looks.append(now)
            long.append((moment, now.local_steps, now.sums["late_seconds"]))
        while looks[0].moment < moment - self._window:
            looks.popleft()
        while long[0][0] < moment - 2 * self._window:
            long.popleft()
        first = looks[0]
        done = now.steps - first.steps
        self.step_seconds = (now.sums["seconds"] - first.sums["seconds"]) / done if done > 0 else None
        known = steps.local_known and now.local_steps > first.local_steps
        self.means = _means(first, now, long[0]) if known else None


def _look(steps: StepAssembler, moment: float) -> _Look:
    phases, variation = steps.phase_seconds, steps.variation
    sums: dict[str, float] = {
        "seconds": steps.seconds,
        "known_seconds": steps.known_seconds,
        "local_seconds": steps.local_seconds,
        "arrival_seconds": steps.arrival_seconds,
        "compute_seconds": steps.compute_seconds,
        "late_steps": variation.late_steps,
        "late_seconds": variation.late_seconds,
        "tokens": steps.work_done.by_unit.get(TOKENS, 0.0),
        "microbatches": variation.microbatches,
    }
    for slow, parts in STEP_PHASES.items():
        sums[slow] = sum([phases.get(each, 0.0) for each in parts])
    return _Look(moment, steps.steps, steps.local_steps, sums, dict(variation.terms))


def _means(first: _Look, now: _Look, long: tuple[float, int, float]) -> RecentMeans:
    steps, known_steps = now.steps - first.steps, now.local_steps - first.local_steps

    def per_step(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
        return {
            name: (total - before.get(name, 0.0)) / (known_steps if name in _OF_LOCAL else steps)
            for name, total in after.items()
        }

    means, terms = per_step(first.sums, now.sums), per_step(first.terms, now.terms)
    return RecentMeans(
        step_seconds=means["seconds"],
        known_seconds=means["known_seconds"],
        local_seconds=means["local_seconds"],
        arrival_seconds=means["arrival_seconds"],
        compute_seconds=means["compute_seconds"],
        phase_seconds={slow: means[slow] for slow in STEP_PHASES},
        tokens=means["tokens"],
        late_steps_ratio=means["late_steps"],
        late_seconds=means["late_seconds"],
        late_long_seconds=(now.sums["late_seconds"] - long[2]) / (now.local_steps - long[1]),
        variance=terms.get("local"),
        together=_together(terms, means["microbatches"]),
    )


def _together(terms: Mapping[str, float], microbatches: float) -> dict[str, Covariation]:
    """Return covariances by what may explain them.

    Two sums of squares and that of the sum give a covariance, (both - one - other) / 2. Work explains the
    covariance over its own spread. Microbatches add up: their spread shrinks with the root of their number.
    """
    found = {}
    for reason, (one, other) in _PAIRS.items():
        both = f"{one}_and_{other}"
        if both not in terms:
            continue
        first, second = terms.get(one, 0.0), terms.get(other, 0.0)
        covariance = (terms[both] - first - second) / 2
        product = first * second
        sigma = None
        if covariance > 0:
            if reason == "work":
                sigma = covariance / math.sqrt(second) if second > 0 else None
            else:
                sigma = math.sqrt(covariance / microbatches) if microbatches > 0 else None
        found[reason] = Covariation(
            covariance=covariance,
            correlation=covariance / math.sqrt(product) if product > 0 else None,
            sigma=sigma,
        )
    return found


RankPlace = tuple[str, str, str]
"""Run, rank and pipeline stage."""


def rank_series(placed: RankPlace, shown: str, replica: str, means: RecentMeans) -> Iterator[Series]:
    """Yield what rules compare between ranks. `replica` is empty where the rank has none, `shown` where every
    rank of its run is exported."""
    key = (*placed, shown)
    yield sample("rankwatch_recent_step_local_seconds", (*key, replica), means.local_seconds)
    yield sample("rankwatch_recent_step_arrival_seconds", key, means.arrival_seconds)
    yield sample("rankwatch_recent_step_compute_seconds", key, means.compute_seconds)
    for phase, seconds in means.phase_seconds.items():
        yield sample("rankwatch_recent_step_phase_seconds", (*key, phase), seconds)
    if means.tokens > 0:
        yield sample("rankwatch_recent_token_local_seconds", key, means.local_seconds / means.tokens)
    yield sample("rankwatch_recent_data_wait_ratio", key, means.data_wait_ratio)
    yield sample("rankwatch_recent_late_steps_ratio", key, means.late_steps_ratio)
    yield sample("rankwatch_recent_late_step_long_seconds", key, means.late_long_seconds)


def token_series(placed: RankPlace, shown: str, means: RecentMeans) -> Iterator[Series]:
    """Yield its tokens, if it reports any."""
    if means.tokens > 0:
        yield sample("rankwatch_recent_step_tokens", (*placed, shown), means.tokens)


def late_series(placed: RankPlace, shown: str, means: RecentMeans) -> Iterator[Series]:
    yield sample("rankwatch_recent_late_step_seconds", (*placed, shown), means.late_seconds)


def half_means(run: str, ranks: Mapping[RankPlace, RecentMeans]) -> Iterator[Series]:
    """Yield what speaks for all ranks of a stage of a large run on this node: only some are exported."""
    for stage, of_stage in _by_stage(ranks).items():
        values = {
            "step_local_seconds": [each.local_seconds for each in of_stage],
            "step_arrival_seconds": [each.arrival_seconds for each in of_stage],
            "step_tokens": [each.tokens for each in of_stage if each.tokens > 0],
            "token_local_seconds": [each.local_seconds / each.tokens for each in of_stage if each.tokens > 0],
        }
        for name, known in values.items():
            yield from half_series(f"rankwatch_recent_half_{name}", (run, stage), known)


def step_series(run: str, steps: Iterable[float | None]) -> Iterator[Series]:
    """Yield the step of the run, also where own time and waits are not told apart."""
    yield from _median("rankwatch_recent_run_step_seconds", (run,), steps)


def node_series(run: str, ranks: Mapping[RankPlace, RecentMeans]) -> Iterator[Series]:
    """Yield medians over the ranks of a run on this node: of these, rules take the median of the run."""
    if not ranks:
        return
    means = ranks.values()
    yield sample("rankwatch_recent_run_waiting_ratio", (run,), median(each.waiting_ratio for each in means))
    variances = [each.variance for each in means if each.variance is not None]
    if variances:
        yield sample("rankwatch_recent_run_step_variance_ratio", (run,), median(variances))
    for reason in TOGETHER:
        found = [each.together[reason] for each in means if reason in each.together]
        for figure in ("covariance", "correlation", "sigma"):
            name = f"rankwatch_recent_run_{figure}_ratio"
            yield from _median(name, (run, reason), (getattr(each, figure) for each in found))
    yield from _lateness(run, means)
    for stage, of_stage in _by_stage(ranks).items():
        yield from _stage_series((run, stage), of_stage)


def _by_stage(ranks: Mapping[RankPlace, RecentMeans]) -> dict[str, list[RecentMeans]]:
    stages: dict[str, list[RecentMeans]] = {}
    for (_, _, stage), each in ranks.items():
        stages.setdefault(stage, []).append(each)
    return stages


def _lateness(run: str, ranks: Iterable[RecentMeans]) -> Iterator[Series]:
    """Yield what late steps take, and what of it a single rank holds."""
    late = sorted(ranks, key=lambda each: each.late_long_seconds, reverse=True)
    long = [each.late_long_seconds for each in late]
    values = {
        "late_step_seconds": math.fsum(each.late_seconds for each in late),
        "late_step_long_seconds": math.fsum(long),
        "late_ranks": float(sum(each > 0 for each in long)),
        "most_late_step_seconds": late[0].late_seconds,
        "most_late_step_long_seconds": long[0],
        "second_late_step_long_seconds": long[1] if len(long) > 1 else 0.0,
    }
    for name, value in values.items():
        yield sample(f"rankwatch_recent_run_{name}", (run,), value)


def _stage_series(key: tuple[str, str], ranks: Sequence[RecentMeans]) -> Iterator[Series]:
    """Yield medians and extremes of the ranks of one stage. key: run and stage."""
    yield sample("rankwatch_recent_stage_ranks", key, float(len(ranks)))
    compute = [each.compute_seconds for each in ranks]
    yield sample("rankwatch_recent_stage_compute_seconds", key, median(compute))
    yield sample("rankwatch_recent_stage_least_compute_seconds", key, min(compute))
    yield sample(
        "rankwatch_recent_stage_data_wait_ratio", key, median(each.data_wait_ratio for each in ranks)
    )
    for phase in ranks[0].phase_seconds:
        seconds = median(each.phase_seconds[phase] for each in ranks)
        yield sample("rankwatch_recent_stage_phase_seconds", (*key, phase), seconds)
    counted = [each for each in ranks if each.tokens > 0]
    yield sample("rankwatch_recent_stage_token_ranks", key, float(len(counted)))
    if counted:
        most = max(counted, key=lambda each: each.tokens)
        yield sample("rankwatch_recent_stage_most_tokens", key, most.tokens)
        yield sample("rankwatch_recent_stage_most_tokens_local_seconds", key, most.local_seconds)


def _median(name: str, labels: tuple[str, ...], values: Iterable[float | None]) -> Iterator[Series]:
    known = [each for each in values if each is not None]
    if known:
        yield sample(name, labels, median(known))
