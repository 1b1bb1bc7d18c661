"""How a rank's own time varies: with its work, between its microbatches, and in single late steps.

Everything is a sum over steps, so that a rate over any window gives a mean. Two sums of squares and
that of the sum give a covariance, (both - one - other) / 2, out of numbers that only grow. Deviations
are relative and counted up to 1, so that one step that takes minutes does not hide all others.
"""

from __future__ import annotations

import math

from rankwatch_agent.training.running_median import RunningMedian
from rankwatch_agent.training.step_parts import StepParts

SPAN_STEPS = 31
"""Steps that tell what is normal: a median of 31 values has a spread of a fifth of theirs."""
LEAST_STEPS = 8
"""Steps before the first is judged; the first ones compile and fill caches."""
LATE_RATIO = 1.25
"""A step is late that takes this much of what is normal: healthy steps of one rank vary by 2 to 5 %."""
_LARGEST = 1.0


class Variation:
    """Sums over the steps of one rank."""

    def __init__(self) -> None:
        self.terms: dict[str, float] = {}
        """Sums of squared relative deviations; a term that cannot be told is not there."""
        self.microbatches = 0
        """Of steps that tell their microbatches."""
        self.late_steps = 0
        self.late_seconds = 0.0
        """Time of late steps beyond what is normal."""
        self._local = RunningMedian(SPAN_STEPS)
        self._work = RunningMedian(SPAN_STEPS)

    def add(self, step: StepParts) -> None:
        """Take a completed step; one whose sums overflowed is let go."""
        if not (step.local_seconds < math.inf and step.work < math.inf):
            return
        self._between_steps(step.local_seconds, step.work)
        if len(step.forward_seconds) > 1 and len(step.forward_seconds) == len(step.backward_seconds):
            self._within_step(step.forward_seconds, step.backward_seconds)

    def _between_steps(self, local: float, work: float) -> None:
        normal, normal_work = self._local.normal(LEAST_STEPS), 0.0
        self._local.add(local)
        if work:
            normal_work = self._work.normal(LEAST_STEPS)
            self._work.add(work)
        if not normal:
            return
        # Two steps with more work take longer; that is no lateness.
        fair = normal * max(1.0, work / normal_work) if normal_work else normal
        if local > LATE_RATIO * fair:
            self.late_steps += 1
            self.late_seconds += local - fair
        if normal_work:
            a, b = _deviation(local / normal), _deviation(work / normal_work)
            self._take("local", a * a, "work", b * b, "local_and_work", (a + b) ** 2)

    def _within_step(self, forward: list[float], backward: list[float]) -> None:
        count = len(forward)
        self.microbatches += count
        mean_forward, mean_backward = sum(forward) / count, sum(backward) / count
        if not mean_forward or not mean_backward:
            return
        first = second = both = 0.0
        for one, other in zip(forward, backward, strict=True):
            a, b = one / mean_forward - 1.0, other / mean_backward - 1.0
            if a > _LARGEST:
                a = _LARGEST
            if b > _LARGEST:
                b = _LARGEST
            first += a * a
            second += b * b
            both += (a + b) * (a + b)
        free = count - 1
        self._take("forward", first / free, "backward", second / free, "forward_and_backward", both / free)

    def _take(self, one: str, first: float, other: str, second: float, sum_of: str, both: float) -> None:
        terms = self.terms
        terms[one] = terms.get(one, 0.0) + first
        terms[other] = terms.get(other, 0.0) + second
        terms[sum_of] = terms.get(sum_of, 0.0) + both


def _deviation(ratio: float) -> float:
    return min(ratio - 1.0, _LARGEST)
