"""Compares what was recorded of a loop with the loop's own stopwatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .recorded import Recorded, self_seconds
from .running import Outcome, Witnessed

_WARM_UP = 2
"""First steps that are left out where times are compared."""
PHASES = ("forward", "backward", "optimizer")


class Losses(NamedTuple):
    """The recorded losses beside those of the loop."""

    missing: int
    """Steps without exactly one loss."""
    equal: int
    """Steps whose loss is the same bit for bit."""
    furthest: float
    """Largest difference as a share of the loop's loss."""


def losses(box: Recorded, true: Witnessed) -> Losses:
    """Compare step by step, in the order of the steps."""
    missing, equal, furthest = 0, 0, 0.0
    for (number, _, _), loss in zip(sorted(box.steps), true.losses, strict=False):
        found = box.losses.get(number, [])
        if len(found) != 1:
            missing += 1
            continue
        equal += found[0] == loss
        furthest = max(furthest, abs(found[0] - loss) / abs(loss))
    return Losses(missing + max(0, len(true.losses) - len(box.steps)), equal, furthest)


def misplaced_steps(box: Recorded, true: Witnessed) -> list[str]:
    """What is wrong with the boundaries of the recorded steps; empty if they are where they should be.

    A step ends after its last update has begun and before the loop calls it done. It begins after the last
    update of the step before it, and at the latest in its own first forward.
    """
    if len(box.steps) != true.steps:
        return [f"{len(box.steps)} steps of {true.steps}"]
    wrong = []
    steps = sorted(box.steps)
    first = steps[0][0]
    if [number for number, _, _ in steps] != list(range(first, first + len(steps))):
        wrong.append(f"numbers {[number for number, _, _ in steps]}")
    after = 0.0
    for (number, began, ended), (done, _) in zip(steps, true.step_ends, strict=True):
        updates = [start for name, start, _ in true.intervals if name == "optimizer" and after < start < done]
        forwards = [end for name, _, end in true.intervals if name == "forward" and after < end < done]
        if not updates[-1] <= ended <= done:
            wrong.append(f"step {number} ends {ended - done:+.4f} s from its end")
        if not after <= began <= forwards[0]:
            wrong.append(
                f"step {number} begins {began - forwards[0]:+.4f} s from the end of its first forward"
            )
        after = updates[-1]
    return wrong


def shares(outcome: Outcome, names: Sequence[str]) -> dict[str, float]:
    """Recorded seconds of each phase over the stopwatch's, all ranks together; 0 where nothing is seen.

    The first steps do not count: the first call of many a function takes long, and the black box is opened.
    """
    seen, true = [], []
    for box, witness in zip(outcome.boxes, outcome.witnessed, strict=True):
        warm = witness.step_ends[_WARM_UP - 1][0]
        seen.append(self_seconds([each for each in box.intervals if each[1] >= warm]))
        true.append(self_seconds([each for each in witness.intervals if each[1] >= warm]))
    return {
        name: sum(each.get(name, 0.0) for each in seen) / whole
        for name in names
        if (whole := sum(each.get(name, 0.0) for each in true))
    }


def same_bits(one: Outcome, other: Outcome) -> bool:
    """True if losses, final weights and the state of the random generator are identical on every rank."""
    return [(each.losses, each.weights, each.random_state) for each in one.witnessed] == [
        (each.losses, each.weights, each.random_state) for each in other.witnessed
    ]


def count(intervals: Sequence[tuple[str, float, float]], name: str) -> int:
    """Intervals of this name."""
    return sum(each == name for each, _, _ in intervals)
