"""A schedule keeps its grid whatever a run costs."""

from __future__ import annotations

import pytest

from rankwatch_agent.runtime.runner import next_start, stale_after


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (100.0, 110.0),  # a run without cost
        (103.0, 110.0),  # the run's own time is not added
        (110.0, 120.0),  # a run that took all of the interval
        (137.0, 140.0),  # two starts are skipped, not caught up
    ],
)
def test_the_next_start_is_the_next_point_of_the_grid(now: float, expected: float) -> None:
    """Starts lie at first + k * interval."""
    assert next_start(100.0, 10.0, now) == expected


def test_a_result_is_stale_after_three_intervals_or_a_late_run() -> None:
    """The longer of the two, so that a slow collector with a short interval is not cut off."""
    assert stale_after(interval=10, deadline=5) == 30
    assert stale_after(interval=1, deadline=10) == 11
