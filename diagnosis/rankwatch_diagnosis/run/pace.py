"""How far the run is, how fast it goes, and what its checkpoints are worth."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rankwatch.blackbox import earlier_attempts, layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions import LOSS, TOKENS
from rankwatch.conventions.vocabulary import DATASET
from rankwatch.errors import BlackBoxError
from rankwatch_diagnosis.loss.detection import LossVerdict, detect
from rankwatch_diagnosis.loss.formats import COLUMNS, ReadCounts, StepValues
from rankwatch_diagnosis.run.boxes import Box, Boxes, read_box
from rankwatch_diagnosis.run.saves import Records, last_good, standing
from rankwatch_diagnosis.run.step_rows import Row
from rankwatch_diagnosis.straggler.verdict import Verdict

RECENT_STEPS = 50
"""Steps from which the pace is taken."""
_MOST_SHOWN = 20
_MOST_EARLIER_RECORDS = 1 << 17
"""Of the box of an earlier attempt; its newest count."""


def progress(boxes: Boxes) -> dict[str, object]:
    """Steps, their duration (seconds; median of the ranks' medians), what is left. Ready for JSON."""
    found = list(boxes.by_rank.values())
    reached = [each.now.step for each in found]
    pace = [seconds for each in found if (seconds := _step_seconds(each)) is not None]
    tokens = [rate for each in found if (rate := _tokens_per_second(each)) is not None]
    target = max((each.now.target_steps or each.header.target_steps or 0 for each in found), default=0)
    step_seconds = median(pace) if pace else None
    shown: dict[str, object] = {
        "step": max(reached),
        "slowest_rank_step": min(reached),
        "steps_completed": max(each.now.steps_completed for each in found),
        "target_steps": target or None,
        "step_seconds": step_seconds,
        # Each rank is taken to count its own tokens; ranks of other nodes are not here.
        "tokens_per_second": sum(tokens) if tokens else None,
    }
    if target and step_seconds is not None:
        shown["remaining_seconds"] = max(0, target - 1 - min(reached)) * step_seconds
    return {name: value for name, value in shown.items() if value is not None}


class _Operation(NamedTuple):
    """A checkpoint operation of one rank, without its stages."""

    rank: int
    name: str
    step: int
    seconds: float
    blocking_seconds: float
    failed: bool


def checkpoints(boxes: Boxes, moment: float | None, records: Records = ()) -> dict[str, object]:
    """The last good one and the failures; `moment` is the Unix time of now, None where no rank lives.

    Operations are counted on the rank with the most: often one rank saves for all.
    """
    by_name: dict[str, list[_Operation]] = defaultdict(list)
    for operation in _operations(boxes):
        by_name[operation.name].append(operation)
    failures = [
        {"operation": each.name, "step": each.step, "rank": each.rank}
        for each in _operations(boxes)
        if each.failed
    ]
    shown: dict[str, object] = {
        "operations": {
            name: max(Counter(each.rank for each in found).values()) for name, found in by_name.items()
        },
        "failures": failures[-_MOST_SHOWN:],
        "failure_count": len(failures),
        "seconds": {name: median(each.seconds for each in found) for name, found in by_name.items()},
        "blocking_seconds": {
            name: median(each.blocking_seconds for each in found) for name, found in by_name.items()
        },
        **standing(boxes, records),
    }
    good = last_good(boxes, records)
    if good is not None:
        shown["last_good"] = {"step": good.step, "rank": good.rank, "unix_seconds": round(good.wall, 3)}
        if moment is not None:
            shown["last_good_age_seconds"] = round(max(0.0, moment - good.wall), 3)
    return {name: value for name, value in shown.items() if value not in ({}, [])}


def _operations(boxes: Boxes) -> Iterator[_Operation]:
    for box in boxes.by_rank.values():
        for record in box.records:
            if record.kind == RecordKind.CHECKPOINT:
                _, step, stage, failed, blocking = layout.CHECKPOINT.unpack_from(record.payload)
                if not stage:
                    name, seconds = box.names.get(record.name, ""), record.end - record.start
                    blocking = min(seconds, blocking) if blocking > 0.0 else 0.0
                    yield _Operation(box.rank, name, step, seconds, blocking, bool(failed))


def _step_seconds(box: Box) -> float | None:
    steps = [each.end - each.start for each in box.records if each.kind == RecordKind.STEP][-RECENT_STEPS:]
    return median(steps) if steps else None


def _tokens_per_second(box: Box) -> float | None:
    """Of the recent steps, the pauses between them included."""
    steps: dict[int, tuple[float, float]] = {}
    tokens: dict[int, float] = defaultdict(float)
    for record in box.records:
        if record.kind == RecordKind.STEP:
            steps[layout.STEP.unpack_from(record.payload)[0]] = (record.start, record.end)
        elif record.kind == RecordKind.WORK and box.names.get(record.name) == TOKENS:
            amount, step = layout.WORK.unpack_from(record.payload)
            if 0.0 <= amount < 1e18:
                tokens[step] += amount
    recent = [step for step in steps if step in tokens][-RECENT_STEPS:]
    if not recent:
        return None
    seconds = max(steps[each][1] for each in recent) - min(steps[each][0] for each in recent)
    return sum(tokens[each] for each in recent) / seconds if seconds > 0.0 else None


def judge_straggler(boxes: Boxes, rows: Mapping[int, Sequence[Row]]) -> Verdict | None:
    """What slows the run down; None where NumPy is not installed."""
    try:
        # Only here: without NumPy there is all but this.
        from rankwatch_diagnosis.run.operation_table import operation_table
        from rankwatch_diagnosis.straggler.engine import diagnose
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        return None
    return diagnose(operation_table(boxes, rows))


def rates(box: Box) -> tuple[float, Mapping[str, float]]:
    """Steps per second, and work per second by unit, over the steps in the box."""
    steps: dict[int, tuple[float, float]] = {}
    amounts: list[tuple[str, int, float]] = []
    for record in box.records:
        if record.kind == RecordKind.STEP:
            steps[layout.STEP.unpack_from(record.payload)[0]] = (record.start, record.end)
        elif record.kind == RecordKind.WORK:
            amount, step = layout.WORK.unpack_from(record.payload)
            amounts.append((box.names.get(record.name, ""), step, amount))
    if not steps:
        return 0.0, {}
    seconds = max(end for _, end in steps.values()) - min(start for start, _ in steps.values())
    if seconds <= 0.0:
        return 0.0, {}
    found: dict[str, float] = defaultdict(float)
    for unit, step, amount in amounts:
        if unit and step in steps and 0.0 <= amount < math.inf:
            found[unit] += amount / seconds
    return len(steps) / seconds, found


_SCALARS = (RecordKind.SCALAR,)


def judge_loss(
    boxes: Boxes, folders: Iterable[Path] = (), *, plateau_steps: int = 0
) -> tuple[int, LossVerdict] | None:
    """Rank and findings of the lowest rank that reports a loss; None where none does.

    folders: of the boxes, where those of earlier attempts are kept.
    """
    for rank, box in boxes.by_rank.items():
        if any(each.kind in _SCALARS and box.names.get(each.name) == LOSS for each in box.records):
            earlier = _earlier(box, folders)
            new_levels = frozenset(_other_data(box))
            return rank, detect(
                _rows(box),
                ReadCounts(),
                new_levels=new_levels,
                plateau_steps=plateau_steps,
                earlier=map(_rows, earlier),
            )
    return None


def _earlier(box: Box, folders: Iterable[Path]) -> Iterator[Box]:
    """What is kept of the rank's earlier attempts, in their order; one that cannot be read is none."""
    for folder in folders:
        for rank, _, path in earlier_attempts.listed(folder):
            if rank == box.rank:
                with suppress(BlackBoxError, OSError):
                    found = read_box(path, most_records=_MOST_EARLIER_RECORDS)
                    if found.header.identity.run == box.header.identity.run:
                        yield found


def _other_data(box: Box) -> Iterator[int]:
    """Steps from which the data are others, as the run says."""
    last: float | None = None
    for record in box.records:
        if record.kind in _SCALARS and box.names.get(record.name) == DATASET:
            value, step = layout.SCALAR.unpack_from(record.payload)
            if value != last:
                yield step
            last = value


def _rows(box: Box) -> Iterator[StepValues]:
    step: int | None = None
    values: dict[str, float] = {}
    for record in box.records:
        name = box.names.get(record.name, "")
        if record.kind not in _SCALARS or name not in COLUMNS:
            continue
        value, number = layout.SCALAR.unpack_from(record.payload)
        if number != step:
            if step is not None:
                yield StepValues(step, **values)
            step, values = number, {}
        values[name] = value
    if step is not None:
        yield StepValues(step, **values)
