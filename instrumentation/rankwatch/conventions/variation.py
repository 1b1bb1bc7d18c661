"""Metrics of how the steps of a rank vary: what tells uneven data and jitter from a slow rank."""

from __future__ import annotations

from rankwatch.conventions.declaration import counter
from rankwatch.conventions.labels import Label

_RANK = (Label.RUN, Label.RANK)

VARIATION = (
    counter(
        "rankwatch_late_steps_total",
        "1",
        _RANK,
        "Steps whose local time, checkpoint and evaluation left out, took more than 1.25 times its median "
        "over the 31 steps before, or that times the step's tokens over their median where they are more.",
    ),
    counter(
        "rankwatch_late_step_seconds_total",
        "seconds",
        _RANK,
        "Time of late steps beyond that median.",
    ),
    counter(
        "rankwatch_step_microbatches_total",
        "1",
        _RANK,
        "Microbatches of completed steps that have at least two, each with a forward and a backward phase.",
    ),
    counter(
        "rankwatch_step_variation_total",
        "1",
        (*_RANK, Label.TERM),
        "Sum over steps of squared relative deviations. local, work: of the step's local time and tokens "
        "from their medians over the 31 steps before. forward, backward: of microbatches from the mean of "
        "their step (variance). local_and_work, forward_and_backward: of the sum of both, so that the "
        "covariance is (sum - one - other) / 2.",
    ),
)
