"""How recorded loops are compared with their own stopwatch."""

from __future__ import annotations

import pytest

from support.loops.comparison import losses, misplaced_steps
from support.loops.recorded import Recorded, self_seconds
from support.loops.running import Witnessed

TRUE = Witnessed(
    steps=2,
    skipped=0,
    losses=[1.0, 0.5],
    intervals=[
        ("forward", 1.0, 2.0),
        ("optimizer", 2.0, 3.0),
        ("forward", 4.0, 5.0),
        ("optimizer", 5.0, 6.0),
    ],
    step_ends=[(3.1, 0.0), (6.1, 0.0)],
    weights="",
    random_state="",
)


def _box(*steps: tuple[int, float, float]) -> Recorded:
    return Recorded(list(steps), [], {0: [1.0], 1: [0.25]}, {}, {}, [], {}, 0, len(steps), "")


def test_inner_intervals() -> None:
    """The time of an inner interval counts for it alone."""
    assert self_seconds(
        [("a", 0.0, 10.0), ("b", 2.0, 5.0), ("b", 5.0, 6.0), ("c", 3.0, 4.0)]
    ) == pytest.approx({"a": 6.0, "b": 3.0, "c": 1.0})


def test_misplaced_steps() -> None:
    """A step must lie where the loop's own step lies, and have the next number."""
    assert misplaced_steps(_box((0, 1.1, 2.9), (1, 3.5, 5.9)), TRUE) == []
    assert misplaced_steps(_box((0, 1.1, 2.9)), TRUE) == ["1 steps of 2"]
    (wrong,) = misplaced_steps(_box((0, 1.1, 4.5), (1, 4.6, 5.9)), TRUE)
    assert "step 0 ends" in wrong
    (wrong,) = misplaced_steps(_box((0, 1.1, 2.9), (1, 5.5, 5.9)), TRUE)
    assert "step 1 begins" in wrong
    (wrong,) = misplaced_steps(_box((0, 1.1, 2.9), (2, 3.5, 5.9)), TRUE)
    assert wrong == "numbers [0, 2]"


def test_losses() -> None:
    """The recorded loss of each step is compared with the loop's."""
    found = losses(_box((0, 1.1, 2.9), (1, 3.5, 5.9)), TRUE)
    assert (found.missing, found.equal, found.furthest) == (0, 1, pytest.approx(0.5))
    assert losses(_box((0, 1.1, 2.9)), TRUE).missing == 1
