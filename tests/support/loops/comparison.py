"""Compares what was recorded of a loop with the loop's own stopwatch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from .recorded import Recorded, self_seconds
from .running import Outcome, Witnessed

WARM_UP = 2
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
    after = before = 0.0
    for (number, began, ended), (done, _) in zip(steps, true.step_ends, strict=True):
        updates = [
            start for name, start, _ in true.intervals if name == "optimizer" and before < start < done
        ]
        forwards = [end for name, _, end in true.intervals if name == "forward" and before < end < done]
        if not updates[-1] <= ended <= done:
            wrong.append(f"step {number} ends {ended - done:+.4f} s from its end")
        if not after <= began <= forwards[0]:
            wrong.append(
                f"step {number} begins {began - forwards[0]:+.4f} s from the end of its first forward"
            )
        after, before = updates[-1], done
    return wrong


class Compared(NamedTuple):
    """What was recorded of a phase, beside the stopwatch of the same process; all ranks together."""

    share: float
    """Recorded seconds over those of the stopwatch; 0 where nothing is seen."""
    excess: float
    """Recorded seconds beyond those of the stopwatch, per step and rank."""


def compare(outcome: Outcome, names: Sequence[str]) -> dict[str, Compared]:
    """Compare each of these phases that the stopwatch knows. Time of a phase inside of another counts once.

    The first steps do not count: the first call of many a function takes long, and the black box is opened.
    """
    seen, true, steps = [], [], 0
    for box, witness in zip(outcome.boxes, outcome.witnessed, strict=True):
        warm = witness.step_ends[WARM_UP - 1][0]
        seen.append(self_seconds([each for each in box.intervals if each[1] >= warm]))
        true.append(self_seconds([each for each in witness.intervals if each[1] >= warm]))
        steps += witness.steps - WARM_UP
    found = {}
    for name in names:
        ours, theirs = (sum(each.get(name, 0.0) for each in ranks) for ranks in (seen, true))
        if theirs:
            found[name] = Compared(ours / theirs, (ours - theirs) / steps)
    return found


def step_seconds(outcome: Outcome) -> float:
    """Median of the steps of all ranks, without the first."""
    ends = [[end for end, _ in each.step_ends[WARM_UP - 1 :]] for each in outcome.witnessed]
    return median(after - before for rank in ends for before, after in pairwise(rank))


def first_seconds(outcome: Outcome) -> float:
    """From the first phase to the end of the steps that are left out elsewhere; the mean of the ranks."""
    return fmean(
        each.step_ends[WARM_UP - 1][0] - min(began for _, began, _ in each.intervals)
        for each in outcome.witnessed
    )


def same_bits(one: Outcome, other: Outcome) -> bool:
    """True if losses, final weights and the state of the random generator are identical on every rank."""
    return [(each.losses, each.weights, each.random_state) for each in one.witnessed] == [
        (each.losses, each.weights, each.random_state) for each in other.witnessed
    ]


def count(intervals: Sequence[tuple[str, float, float]], name: str) -> int:
    """Intervals of this name."""
    return sum(each == name for each, _, _ in intervals)
