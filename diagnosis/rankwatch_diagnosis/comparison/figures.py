"""The figures of a run that are compared: from its black boxes, with one value for each step where it has."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, quantiles

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions import COMMUNICATION, LOSS
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.timeouts import SECTIONS
from rankwatch_diagnosis.run.boxes import Box, Boxes, read_boxes
from rankwatch_diagnosis.run.folder import find_run, read_copied_ranks
from rankwatch_diagnosis.run.pace import checkpoints, judge_straggler, rates
from rankwatch_diagnosis.run.step_rows import Row, rows_by_rank
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
    """What slows the run down, in words."""
    notes: tuple[str, ...]
    """What could not be seen."""

    @property
    def p95_step_seconds(self) -> float | None:
        """95 % of the steps are shorter; None below 20 steps."""
        values = list(self.step_seconds.values())
        return quantiles(values, n=20)[-1] if len(values) >= 20 else None

    def mean_loss(self, steps: Sequence[int]) -> float | None:
        """Over these steps; None where one is missing or not finite."""
        values = [self.losses.get(each, math.nan) for each in steps]
        mean = fmean(values) if values else math.nan
        return mean if math.isfinite(mean) else None


def read_figures(directory: Path) -> RunFigures:
    """The figures of the run in a directory, live or dead, or of a bundle. Raises UserError."""
    folder = find_run(directory)
    copied = None if folder.bundle is None else read_copied_ranks(folder.bundle)
    boxes = read_boxes(folder.boxes, copied=copied)
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
    return RunFigures(
        run=boxes.run,
        world_size=boxes.world_size,
        ranks=len(boxes.by_rank),
        step_seconds=steps,
        phase_seconds=_phase_seconds(rows, steps),
        work_per_second=dict(work),
        work_per_step=dict(per_step),
        losses=_losses(boxes),
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
    """Without those of the warm-up. Where the ring has lost the beginning, all in it came after that."""
    started = 0 if box.missed else WARM_UP_STEPS
    seen = 0
    for record in box.records:
        if record.kind == RecordKind.STEP:
            step, flags = layout.STEP.unpack_from(record.payload)
            seen += 1
            if not flags & layout.STEP_FAILED and seen > started:
                yield step, record.end - record.start


def _phase_seconds(
    rows: Mapping[int, Sequence[Row]], steps: Mapping[int, float]
) -> dict[str, dict[int, float]]:
    of_ranks: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for rows_of_rank in rows.values():
        of_rank: dict[tuple[str, int], float] = defaultdict(float)
        for row in rows_of_rank:
            if row.operation not in SECTIONS and row.step in steps:
                name = COMMUNICATION if row.kind == COMMUNICATION else row.operation
                of_rank[name, row.step] += row.seconds
        for (name, step), seconds in of_rank.items():
            of_ranks[name][step].append(seconds)
    return {
        name: {step: median(found) for step, found in sorted(by_step.items())}
        for name, by_step in of_ranks.items()
    }


def _losses(boxes: Boxes) -> dict[int, float]:
    for box in boxes.by_rank.values():
        found = {
            step: value
            for record in box.records
            if record.kind == RecordKind.SCALAR and box.names.get(record.name) == LOSS
            for value, step in (layout.SCALAR.unpack_from(record.payload),)
        }
        if found:
            return found
    return {}
