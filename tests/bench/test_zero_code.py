"""How recorded loops are compared with their own stopwatch."""

from __future__ import annotations

import pytest

from support.loops.comparison import compare, first_seconds, losses, misplaced_steps, step_seconds
from support.loops.recorded import Recorded, self_seconds
from support.loops.running import Outcome, Witnessed

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


def test_update_around_its_passes() -> None:
    """An update may contain the passes of its last batch, as in Lightning."""
    intervals = [
        (name, step + began, step + ended)
        for step in (1.0, 4.0)
        for name, began, ended in (
            ("forward", 0.0, 0.3),
            ("optimizer", 0.5, 1.9),
            ("forward", 0.6, 0.9),
        )
    ]
    assert misplaced_steps(_box((0, 0.9, 2.9), (1, 4.0, 5.9)), TRUE._replace(intervals=intervals)) == []


def test_compared_phases() -> None:
    """Each phase of the later steps is compared with the stopwatch, per step of each rank."""
    ends = [(float(each), 0.0) for each in range(10, 15)]
    true = TRUE._replace(steps=5, step_ends=ends, intervals=[("forward", 0.0, 9.0), ("forward", 11.2, 11.6)])
    box = _box()._replace(intervals=[("forward", 0.0, 1.0), ("forward", 11.2, 11.5)])
    outcome = Outcome(0, "", "", [true, true], [box, box])
    found = compare(outcome, ("forward", "backward"))
    assert found == {"forward": (pytest.approx(0.75), pytest.approx(-0.1 / 3))}
    assert (step_seconds(outcome), first_seconds(outcome)) == (1.0, 11.0)


def test_losses() -> None:
    """The recorded loss of each step is compared with the loop's."""
    found = losses(_box((0, 1.1, 2.9), (1, 3.5, 5.9)), TRUE)
    assert (found.missing, found.equal, found.furthest) == (0, 1, pytest.approx(0.5))
    assert losses(_box((0, 1.1, 2.9)), TRUE).missing == 1
