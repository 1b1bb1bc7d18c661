"""Two runs beside each other: the figures of each by its black boxes, and what changed from one to the other.

Each change comes with how certain it is, and with its limit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist, fmean, median, quantiles
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.conventions.vocabulary import LOSS
from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.run.box_records import scalars_of, steps_of
from rankwatch_diagnosis.run.boxes import Box, Boxes, read_run
from rankwatch_diagnosis.run.pace import checkpoints, judge_straggler, rates
from rankwatch_diagnosis.run.step_rows import Row, phases_by_step, rows_by_rank
from rankwatch_diagnosis.run.summary import verdict_words

WARM_UP_STEPS = 10
"""Steps after the start of a process that are left out: compilation, caches, the first allocations."""
LOSS_STEPS = 50
"""Last common steps over which the loss is averaged."""


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """What is compared of one run."""

    run: str
    world_size: int
    ranks: int
    """Those whose boxes were read."""
    step_seconds: Mapping[int, float]
    """Step -> seconds, the median of the ranks, without warm-up."""
    phase_seconds: Mapping[str, Mapping[int, float]]
    """Phase -> step -> seconds, likewise. `communication` is apart; saves and evaluations are left out."""
    work_per_second: Mapping[str, float]
    """Unit -> amount per second over all ranks here, pauses between steps included."""
    work_per_step: Mapping[str, float]
    losses: Mapping[int, float]
    """Step -> loss of the lowest rank that reports one."""
    save_blocking_seconds: float | None
    """Of a save, the median; None where there was none."""
    gpu_memory_peak_bytes: float | None
    """Of the rank with the most; None without a GPU."""
    slowed_by: str
    """Words that say what slows the run down."""
    notes: tuple[str, ...]
    """Things that could not be seen."""

    @property
    def p95_step_seconds(self) -> float | None:
        """95 % of the steps are shorter; None below 20 steps."""
        values = list(self.step_seconds.values())
        return quantiles(values, n=20)[-1] if len(values) >= 20 else None

    def mean_loss(self, steps: Sequence[int]) -> float | None:
        """Return the mean loss over these steps; None where one is missing or not finite."""
        values = [self.losses.get(each, math.nan) for each in steps]
        mean = fmean(values) if values else math.nan
        return mean if math.isfinite(mean) else None


def read_figures(directory: Path) -> RunFigures:
    """Return the figures of the run in a directory, live or dead, or of a bundle. Raises UserError."""
    *_, boxes = read_run(directory)
    steps = _step_seconds(boxes)
    if not steps:
        raise UserError(
            f"{directory} holds no whole step after the first {WARM_UP_STEPS}: nothing to compare"
        )
    rows = rows_by_rank(boxes)
    work: dict[str, float] = defaultdict(float)
    per_step: dict[str, float] = defaultdict(float)
    for box in boxes.by_rank.values():
        steps_per_second, amounts = rates(box)
        for unit, rate in amounts.items():
            work[unit] += rate
            per_step[unit] += rate / steps_per_second
    saves = checkpoints(boxes, None).get("blocking_seconds", {})
    peaks = [each.now.allocator.peak for each in boxes.by_rank.values() if each.now.allocator is not None]
    found = ({step: value for _, step, value in scalars_of(box, LOSS)} for box in boxes.by_rank.values())
    return RunFigures(
        run=boxes.run,
        world_size=boxes.world_size,
        ranks=len(boxes.by_rank),
        step_seconds=steps,
        phase_seconds=_phase_seconds(rows, steps),
        work_per_second=dict(work),
        work_per_step=dict(per_step),
        losses=next(filter(None, found), {}),
        save_blocking_seconds=saves.get("save") if isinstance(saves, Mapping) else None,
        gpu_memory_peak_bytes=float(max(peaks)) if peaks else None,
        slowed_by=verdict_words(judge_straggler(boxes, rows)),
        notes=tuple(_notes(boxes)),
    )


def _notes(boxes: Boxes) -> Iterator[str]:
    if len(boxes.by_rank) < boxes.world_size:
        yield f"{len(boxes.by_rank)} of {boxes.world_size} ranks are here"
    if boxes.skipped:
        yield f"{sum(boxes.skipped.values())} black boxes were left out"
    missed = sum(each.missed for each in boxes.by_rank.values())
    if missed:
        yield "older steps are no longer in the boxes"


def _step_seconds(boxes: Boxes) -> dict[int, float]:
    by_step: dict[int, list[float]] = defaultdict(list)
    for box in boxes.by_rank.values():
        for step, seconds in _whole_steps(box):
            by_step[step].append(seconds)
    return {step: median(seconds) for step, seconds in sorted(by_step.items())}


def _whole_steps(box: Box) -> Iterator[tuple[int, float]]:
    """Yield number and seconds of each step that did not fail, without those of the warm-up.

    Where the ring has lost the beginning, all in it came after that.
    """
    started = 0 if box.missed else WARM_UP_STEPS
    for seen, each in enumerate(steps_of(box)):
        if not each.flags & layout.STEP_FAILED and seen >= started:
            yield each.number, each.end - each.start


def _phase_seconds(
    rows: Mapping[int, Sequence[Row]], steps: Mapping[int, float]
) -> dict[str, dict[int, float]]:
    of_ranks: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for rows_of_rank in rows.values():
        for step, phases in phases_by_step(rows_of_rank).items():
            for name, seconds in phases.items() if step in steps else ():
                of_ranks[name][step].append(seconds)
    return {
        name: {step: median(found) for step, found in sorted(by_step.items())}
        for name, by_step in of_ranks.items()
    }


MOST_BLOCKS = 40
"""Neighbouring steps are alike, so they are not independent; medians of long enough blocks nearly are."""
LEAST_BLOCKS = 5
"""Of each run; from fewer no interval excludes "no change"."""
CONFIDENCE = 0.95


class Shift(NamedTuple):
    """A factor: 1.05 is 5 % more than before."""

    factor: float
    low: float
    high: float
    """The factor lies between low and high in CONFIDENCE of all cases."""


def shift_between(before: Sequence[float], after: Sequence[float]) -> Shift | None:
    """Return the factor from `before` to `after`, positive values in the order in which they were measured.

    Hodges and Lehmann's estimate with its interval (Annals of Mathematical Statistics 34, 1963), on the
    logarithms of the medians of blocks: no distribution is assumed, and outliers do not move it. None if
    either run has fewer than LEAST_BLOCKS values.
    """
    first, second = _block_logarithms(before), _block_logarithms(after)
    if min(len(first), len(second)) < LEAST_BLOCKS:
        return None
    differences = sorted(b - a for a in first for b in second)
    pairs = len(differences)
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    within = z * math.sqrt(pairs * (len(first) + len(second) + 1) / 12)
    lowest = max(0, math.floor(pairs / 2 - within))
    return Shift(
        factor=math.exp(median(differences)),
        low=math.exp(differences[lowest]),
        high=math.exp(differences[pairs - 1 - lowest]),
    )


def _block_logarithms(values: Sequence[float]) -> list[float]:
    """Return logarithms of the medians of at most MOST_BLOCKS consecutive blocks of about equal length."""
    usable = [each for each in values if 0.0 < each < math.inf]
    blocks = min(MOST_BLOCKS, len(usable))
    edges = [len(usable) * at // blocks for at in range(blocks + 1)] if blocks else []
    return [math.log(median(usable[begin:end])) for begin, end in pairwise(edges)]


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
    """Yield the phases that both runs have, those with the most time first."""
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
