"""Which checkpoint of a run is complete, what became of the others, and what the last resume lost.

Read from the boxes of the present attempt and from those that are kept of earlier ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rankwatch_agent.training.verifications import VerificationRecord, newest_of_paths
from rankwatch_diagnosis.run.boxes import Box, Boxes

Records = Sequence[VerificationRecord]
"""What the agent of this node has read of the run's checkpoints, and found."""


def standing(boxes: Boxes, records: Records = ()) -> dict[str, object]:
    """Steps and counts, over all attempts of which a box is left. Ready for JSON."""
    attempts = _attempts(boxes)
    found = [box for attempt in attempts for box in attempt]
    unfinished = [box.checkpoints.operations["save"].unfinished for box in found]
    complete = [step for attempt in attempts if (step := complete_step(attempt)) is not None]
    saved = [step for box in found if (step := _saved_step(box)) is not None]
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
        "failures_by_stage": _failures_by_stage(found),
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
    """The newest that the run itself has verified; where it verifies none, the newest complete one. That of
    an earlier attempt counts until the present one has its own.

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
        GoodCheckpoint(_saved_wall(box), step, box.rank)
        for box in attempt
        if _saves(box) and (step := _saved_step(box)) is not None
    ]
    return min(saved, key=lambda each: each.step) if complete_step(attempt) is not None else None


def complete_step(attempt: Iterable[Box]) -> int | None:
    """Step of the newest checkpoint that each rank that saves has saved; None where there is none.

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
    """The now block remembers what the ring has overwritten."""
    if box.checkpoints.saved is not None:
        return box.checkpoints.saved.step
    return box.now.checkpoint_step if box.now.checkpoint_ended else None


def _saved_wall(box: Box) -> float:
    saved = box.checkpoints.saved
    return box.wall(box.now.checkpoint_ended if saved is None else saved.ended)


def _attempts(boxes: Boxes) -> list[list[Box]]:
    """The boxes of each attempt, the present one last."""
    earlier: dict[int, dict[int, Box]] = {}
    for box in (*boxes.kept, *boxes.earlier):
        earlier.setdefault(box.header.identity.attempt, {})[box.rank] = box
    return [*(list(earlier[number].values()) for number in sorted(earlier)), list(boxes.by_rank.values())]


def _failures_by_stage(found: Iterable[Box]) -> dict[str, int]:
    failures: Counter[str] = Counter()
    for box in found:
        failures.update(box.checkpoints.operations["save"].stage_failures)
    return dict(failures)


def _resume(attempts: Sequence[Sequence[Box]]) -> dict[str, object]:
    """The step that the present attempt goes on from, and what the ones before had beyond it."""
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
