"""What changed from one run to the other: each figure with its change, how certain it is, and its limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import NamedTuple

from rankwatch_diagnosis.comparison.figures import LOSS_STEPS, RunFigures
from rankwatch_diagnosis.comparison.shift import Shift, shift_between

LEAST_CHANGE = 0.005
"""Half a percent; a smaller change is called none, however certain it is."""
_MOST_PHASES = 12
_MOST_UNITS = 4


class Limited(StrEnum):
    """Figures that may be given a limit."""

    STEP_TIME = "step_time"
    P95_STEP_TIME = "p95_step_time"
    THROUGHPUT = "throughput"
    SAVE_TIME = "save_time"
    GPU_MEMORY = "gpu_memory"
    LOSS = "loss"


class Outcome(StrEnum):
    """What became of a figure."""

    SAME = "same"
    """No change of LEAST_CHANGE or more is certain."""
    BETTER = "better"
    WORSE = "worse"
    """It became worse, within its limit, or has none."""
    REGRESSION = "regression"
    """It became worse by more than its limit."""
    UNCERTAIN = "uncertain"
    """It looks worse by more than its limit, but the runs vary too much for any change to be certain."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One figure of both runs."""

    figure: str
    unit: str
    before: float
    after: float
    worsening: float
    """Share by which it became worse; negative where it became better."""
    interval: tuple[float, float] | None
    """Of the worsening, for 95 % of all cases; None where each run has a single value."""
    limit: float | None
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs beside each other."""

    before: RunFigures
    after: RunFigures
    changes: tuple[Change, ...]
    unlike: tuple[str, ...]
    """In what the runs differ, so that figures mean different things."""
    missing: tuple[Limited, ...]
    """Figures with a limit that one of the runs does not have."""

    @property
    def regressions(self) -> tuple[Change, ...]:
        """What became worse by more than its limit."""
        return tuple(each for each in self.changes if each.outcome is Outcome.REGRESSION)


class _Figure(NamedTuple):
    """A figure of both runs; None where a run does not have it. shift: where there is one value a step."""

    kind: Limited | None
    name: str
    unit: str
    before: float | None
    after: float | None
    shift: Shift | None = None
    more_is_better: bool = False


def compare(before: RunFigures, after: RunFigures, limits: Mapping[Limited, float]) -> Comparison:
    """Compare two runs. limits: figure -> share by which it may become worse."""
    changes: list[Change] = []
    judged: set[Limited | None] = set()
    for figure in (*_figures(before, after), *_phases(before, after)):
        limit = limits.get(figure.kind) if figure.kind is not None else None
        change = _change(figure, limit)
        if change is not None:
            changes.append(change)
            judged.add(figure.kind)
    return Comparison(
        before=before,
        after=after,
        changes=tuple(changes),
        unlike=tuple(_unlike(before, after)),
        missing=tuple(each for each in limits if each not in judged),
    )


def _figures(before: RunFigures, after: RunFigures) -> Iterator[_Figure]:
    yield _per_step(Limited.STEP_TIME, "step time", before.step_seconds, after.step_seconds)
    p95 = before.p95_step_seconds, after.p95_step_seconds
    yield _Figure(Limited.P95_STEP_TIME, "step time, p95", "seconds", *p95)
    for unit in [each for each in before.work_per_second if each in after.work_per_second][:_MOST_UNITS]:
        rates = before.work_per_second[unit], after.work_per_second[unit]
        yield _Figure(Limited.THROUGHPUT, f"{unit} per second", "1", *rates, more_is_better=True)
    saves = before.save_blocking_seconds, after.save_blocking_seconds
    yield _Figure(Limited.SAVE_TIME, "save, blocking", "seconds", *saves)
    peaks = before.gpu_memory_peak_bytes, after.gpu_memory_peak_bytes
    yield _Figure(Limited.GPU_MEMORY, "GPU memory, peak", "bytes", *peaks)
    steps = sorted(before.losses.keys() & after.losses.keys())[-LOSS_STEPS:]
    if steps:
        losses = before.mean_loss(steps), after.mean_loss(steps)
        yield _Figure(Limited.LOSS, f"loss, steps {steps[0]} to {steps[-1]}", "1", *losses)


def _phases(before: RunFigures, after: RunFigures) -> Iterator[_Figure]:
    """The phases that both runs have, those with the most time first."""
    both = before.phase_seconds.keys() & after.phase_seconds.keys()
    order = sorted(both, key=lambda name: -median(before.phase_seconds[name].values()))
    for name in order[:_MOST_PHASES]:
        yield _per_step(None, name, before.phase_seconds[name], after.phase_seconds[name])


def _per_step(
    kind: Limited | None, name: str, before: Mapping[int, float], after: Mapping[int, float]
) -> _Figure:
    first, second = list(before.values()), list(after.values())
    shift = shift_between(first, second)
    if shift is None and min(first) > 0.0:
        shift = Shift(median(second) / median(first), 0.0, float("inf"))  # too few steps for any certainty
    return _Figure(kind, name, "seconds", median(first), median(second), shift)


def _change(figure: _Figure, limit: float | None) -> Change | None:
    before, after = figure.before, figure.after
    if not before or not after or min(before, after) <= 0.0:
        return None
    worsening = (before - after if figure.more_is_better else after - before) / before
    interval = None
    if figure.shift is not None:
        worsening = figure.shift.factor - 1.0
        interval = (figure.shift.low - 1.0, figure.shift.high - 1.0)
    return Change(
        figure=figure.name,
        unit=figure.unit,
        before=before,
        after=after,
        worsening=worsening,
        interval=interval,
        limit=limit,
        outcome=_outcome(worsening, interval, limit),
    )


def _outcome(worsening: float, interval: tuple[float, float] | None, limit: float | None) -> Outcome:
    low, high = interval or (worsening, worsening)
    certain = low > 0.0 or high < 0.0
    if limit is not None and worsening > limit:
        return Outcome.REGRESSION if certain else Outcome.UNCERTAIN
    if not certain or abs(worsening) < LEAST_CHANGE:
        return Outcome.SAME
    return Outcome.WORSE if worsening > 0.0 else Outcome.BETTER


def _unlike(before: RunFigures, after: RunFigures) -> Iterator[str]:
    if before.world_size != after.world_size:
        yield f"{before.world_size} and {after.world_size} ranks"
    for unit in [each for each in before.work_per_step if each in after.work_per_step]:
        first, second = before.work_per_step[unit], after.work_per_step[unit]
        if abs(second - first) > 0.01 * first:  # either may be 0
            yield f"{first:,.6g} and {second:,.6g} {unit} a step: compare the rate, not the time of a step"
