"""How far the run is, how fast it goes, and what its checkpoints are worth.

Checkpoints count over the present attempt and those of which boxes are kept: which one is complete, what
became of the others, and what the last resume lost.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from rankwatch.conventions.vocabulary import TOKENS
from rankwatch_agent.training.checkpoints.verifications import VerificationRecord, newest_of_paths
from rankwatch_diagnosis.run.box_records import CheckpointOperation, checkpoint_operations, steps_of, work_of
from rankwatch_diagnosis.run.boxes import Box, Boxes
from rankwatch_diagnosis.run.step_rows import Row
from rankwatch_diagnosis.straggler.verdict import Verdict

RECENT_STEPS = 50
"""Steps from which the pace is taken."""
_MOST_SHOWN = 20


def progress(boxes: Boxes) -> dict[str, object]:
    """Return steps, their duration (seconds; median of the ranks' medians), what is left. Ready for JSON."""
    found = list(boxes.by_rank.values())
    reached = [each.now.step for each in found]
    steps = [[each.end - each.start for each in steps_of(box)][-RECENT_STEPS:] for box in found]
    pace = [median(each) for each in steps if each]
    tokens = [rate for each in found if (rate := _tokens_per_second(each)) is not None]
    target = max((each.target_steps for each in found), default=0)
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


def checkpoints(boxes: Boxes, moment: float | None, records: Records = ()) -> dict[str, object]:
    """Return the last good one and the failures; `moment` is the Unix time of now, None where no rank lives.

    Operations are counted on the rank with the most: often one rank saves for all.
    """
    operations = [each for box in boxes.by_rank.values() for each in checkpoint_operations(box)]
    by_name: dict[str, list[CheckpointOperation]] = defaultdict(list)
    for operation in operations:
        by_name[operation.name].append(operation)
    failures = [
        {"operation": each.name, "step": each.step, "rank": each.rank} for each in operations if each.failed
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


def _tokens_per_second(box: Box) -> float | None:
    """Return the tokens per second of the recent steps, the pauses between them included."""
    steps = {each.number: each for each in steps_of(box)}
    tokens: dict[int, float] = defaultdict(float)
    for unit, step, amount in work_of(box):
        if unit == TOKENS and 0.0 <= amount < 1e18:
            tokens[step] += amount
    recent = [step for step in steps if step in tokens][-RECENT_STEPS:]
    if not recent:
        return None
    seconds = max(steps[each].end for each in recent) - min(steps[each].start for each in recent)
    return sum(tokens[each] for each in recent) / seconds if seconds > 0.0 else None


def judge_straggler(boxes: Boxes, rows: Mapping[int, Sequence[Row]]) -> Verdict | None:
    """Return what slows the run down; None where NumPy is not installed."""
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
    """Return steps per second, and work per second by unit, over the steps in the box."""
    steps = {each.number: each for each in steps_of(box)}
    if not steps:
        return 0.0, {}
    seconds = max(each.end for each in steps.values()) - min(each.start for each in steps.values())
    if seconds <= 0.0:
        return 0.0, {}
    found: dict[str, float] = defaultdict(float)
    for unit, step, amount in work_of(box):
        if unit and step in steps and 0.0 <= amount < math.inf:
            found[unit] += amount / seconds
    return len(steps) / seconds, found


Records = Sequence[VerificationRecord]
"""Records of what the agent of this node has read of the run's checkpoints, and found."""


def standing(boxes: Boxes, records: Records = ()) -> dict[str, object]:
    """Return steps and counts, over all attempts of which a box is left. Ready for JSON."""
    attempts = _attempts(boxes)
    found = [box for attempt in attempts for box in attempt]
    unfinished = [box.checkpoints.operations["save"].unfinished for box in found]
    complete = [step for attempt in attempts if (step := complete_step(attempt)) is not None]
    saved = [step for box in found if (step := _saved_step(box)) is not None]
    failures: Counter[str] = Counter()
    for box in found:
        failures.update(box.checkpoints.operations["save"].stage_failures)
    shown = {
        "newest_saved_step": max(saved, default=None),
        "newest_complete_step": complete[-1] if complete else None,
        "agent_verified_step": max((each.step for each in records if each.outcome == "good"), default=None),
        "agent_found_damaged": [
            {name: getattr(each, name) for name in ("step", "path", "file", "tensor", "damage")}
            for each in newest_of_paths(records)
            if each.found_bad
        ],
        "unfinished_saves": sum(unfinished) or None,
        "failures_by_stage": dict(failures),
        "failures_after_training_went_on": sum(box.checkpoints.failed_beside for box in found) or None,
        **_resume(attempts),
    }
    return {name: value for name, value in shown.items() if value not in (None, {}, [])}


class GoodCheckpoint(NamedTuple):
    """What a run can go on from."""

    wall: float
    """Unix time at which it was saved, or verified."""
    step: int
    rank: int
    """That was the last to save it, or has verified it; 0 where the agent has."""


def last_good(boxes: Boxes, records: Records = ()) -> GoodCheckpoint | None:
    """Return the newest that the run itself has verified; where it verifies none, the newest complete one.
    That of an earlier attempt counts until the present one has its own.

    One that the agent has found damaged is none: then the newest that the agent has verified counts.
    """
    attempts = reversed(_attempts(boxes))
    good = next((found for attempt in attempts if (found := _good_of(attempt)) is not None), None)
    if good is None or good.step not in {each.step for each in newest_of_paths(records) if each.found_bad}:
        return good
    verified = [each for each in records if each.outcome == "good" and each.step <= good.step]
    newest = max(verified, key=lambda each: each.ended, default=None)
    return None if newest is None else GoodCheckpoint(newest.ended, newest.step, 0)


def _good_of(attempt: Sequence[Box]) -> GoodCheckpoint | None:
    for kind in ("verified", "committed"):
        found = [
            GoodCheckpoint(box.wall(each.ended), each.step, box.rank)
            for box in attempt
            if (each := getattr(box.checkpoints, kind)) is not None
        ]
        if found:
            return max(found)
    saved = [
        GoodCheckpoint(
            box.wall(box.now.checkpoint_ended if (last := box.checkpoints.saved) is None else last.ended),
            step,
            box.rank,
        )
        for box in attempt
        if _saves(box) and (step := _saved_step(box)) is not None
    ]
    return min(saved, key=lambda each: each.step) if complete_step(attempt) is not None else None


def complete_step(attempt: Iterable[Box]) -> int | None:
    """Return the step of the newest checkpoint that each rank that saves has saved; None where there is none.

    Where a rank writes common metadata when all others are done, its save decides.
    """
    saving = [box for box in attempt if _saves(box)]
    committed = [box.checkpoints.committed.step for box in saving if box.checkpoints.committed is not None]
    if committed:
        return max(committed)
    steps = [_saved_step(box) for box in saving]
    known = [step for step in steps if step is not None]
    return min(known) if known and len(known) == len(steps) else None


def _saves(box: Box) -> bool:
    saves = box.checkpoints.operations["save"]
    begun = saves.succeeded + saves.failed + saves.unfinished
    return begun > 0 or bool(box.checkpoints.saves_under_way()) or box.now.checkpoint_ended > 0.0


def _saved_step(box: Box) -> int | None:
    """Return the step saved last; the now block remembers what the ring has overwritten."""
    if box.checkpoints.saved is not None:
        return box.checkpoints.saved.step
    return box.now.checkpoint_step if box.now.checkpoint_ended else None


def _attempts(boxes: Boxes) -> list[list[Box]]:
    """Return the boxes of each attempt, the present one last."""
    earlier: dict[int, dict[int, Box]] = {}
    for box in (*boxes.kept, *boxes.earlier):
        earlier.setdefault(box.header.identity.attempt, {})[box.rank] = box
    return [*(list(earlier[number].values()) for number in sorted(earlier)), list(boxes.by_rank.values())]


def _resume(attempts: Sequence[Sequence[Box]]) -> dict[str, object]:
    """Return the step that the present attempt goes on from, and what the ones before had beyond it."""
    *before, present = attempts
    restored = [step for box in present if (step := box.checkpoints.restored_step) is not None and step >= 0]
    if not restored:
        return {}
    step = min(restored)
    lost = max((box.checkpoints.steps_lost for box in present), default=0)
    if before:
        lost += max(0, max(box.checkpoints.reached for box in before[-1]) - step)
    complete = [each for attempt in before if (each := complete_step(attempt)) is not None]
    older = {"resumed_although_complete_step": complete[-1]} if complete and complete[-1] > step else {}
    return {"restored_step": step, "steps_lost": lost, **older}
