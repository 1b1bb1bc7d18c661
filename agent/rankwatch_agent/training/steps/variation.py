"""Single steps of a rank until they are counted, and how its own time varies: with its work, between its
microbatches, and in single late steps.

Work is recorded with the number of its step, and may come before the step is counted. So does what the GPU's
clock shows of the step.

What varies is a sum over steps, so that a rate over any window gives a mean. Two sums of squares and that of
the sum give a covariance, (both - one - other) / 2, from numbers that only grow. Deviations are relative and
count up to 1, so that one step of minutes does not hide all others."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rankwatch.conventions.states import NOT_COMPUTE
from rankwatch.conventions.vocabulary import COMMUNICATION, OTHER
from rankwatch_agent.training.steps.split import Interval

_MAX_OPEN_STEPS = 64
"""Steps kept until they are complete; the host runs ahead of the GPU by a few."""
_MAX_MICROBATCHES = 4096
_MIN_MICROBATCHES = 8
_FORWARD, _BACKWARD = "forward", "backward"


@dataclass(slots=True)
class StepParts:
    local_seconds: float = 0.0
    """Own time without checkpoints and evaluation."""
    work: float = 0.0
    """Tokens; 0 where the run reports none."""
    forward_seconds: list[float] = field(default_factory=list)
    """Of each microbatch, in order, without blocked time."""
    backward_seconds: list[float] = field(default_factory=list)
    max_microbatches: int = _MAX_MICROBATCHES

    def phase(self, name: str, seconds: float) -> None:
        """Add a phase of the step and its seconds without blocked time."""
        if name == _FORWARD:
            found = self.forward_seconds
        elif name == _BACKWARD:
            found = self.backward_seconds
        else:
            return
        if len(found) < self.max_microbatches:
            found.append(seconds)

    def phases(self, phases: Sequence[Interval], seconds: Sequence[float]) -> None:
        """Add all phases of the step at once, each with its seconds without blocked time."""
        forward, backward = self.forward_seconds, self.backward_seconds
        for (_, _, name), took in zip(phases, seconds, strict=True):
            if name == _FORWARD:
                forward.append(took)
            elif name == _BACKWARD:
                backward.append(took)
        del forward[self.max_microbatches :], backward[self.max_microbatches :]


class OpenSteps:
    """Steps that are not complete yet; each is handed to `complete` once it is."""

    def __init__(self, complete: Callable[[StepParts], None]) -> None:
        self._complete = complete
        self._steps: dict[int, StepParts] = {}
        self._max_microbatches = _MAX_MICROBATCHES

    def keep_at_most(self, records: int) -> None:
        """Bound the microbatches kept of each step, so that all open steps have few more than `records`."""
        self._max_microbatches = min(_MAX_MICROBATCHES, max(_MIN_MICROBATCHES, records // 8))

    def work(self, number: int, tokens: float) -> None:
        self.of(number).work += tokens

    def ended(self, number: int) -> None:
        """Note that all of a step is known."""
        step = self._steps.pop(number, None)
        self._complete(StepParts() if step is None else step)

    def begin_process(self) -> None:
        """Note that another process takes the rank, and may go back to earlier steps."""
        self._steps.clear()

    def of(self, number: int) -> StepParts:
        """Return what is known of a step so far."""
        step = self._steps.get(number)
        if step is None:
            if len(self._steps) == _MAX_OPEN_STEPS:
                del self._steps[next(iter(self._steps))]
            step = self._steps[number] = StepParts(max_microbatches=self._max_microbatches)
        return step


class RunningMedian:
    """The median of the last `span` values.

    A median stays put while fewer than half of them are off, and follows a lasting change after half
    of them: an average would call the steps after a change of level odd for much longer.
    """

    __slots__ = ("_order", "_sorted", "_span")

    def __init__(self, span: int) -> None:
        self._span = span
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._order)

    @property
    def value(self) -> float:
        """The median, of an even number the upper one; raises IndexError while there is no value."""
        return self._sorted[len(self._sorted) // 2]

    def quantile(self, share: float) -> float:
        """Return the value that this share of the values lies below; raises IndexError without any."""
        return self._sorted[min(len(self._sorted) - 1, int(share * len(self._sorted)))]

    def normal(self, least: int) -> float:
        """Return the median once there are at least so many values, 0 until then."""
        values = self._sorted
        return values[len(values) // 2] if len(values) >= least else 0.0

    def add(self, value: float) -> None:
        """Take a value, and drop the oldest; it must not be NaN."""
        if len(self._order) == self._span:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._order.append(value)
        insort(self._sorted, value)


WINDOW_STEPS = 31
"""Steps that show what is normal: a median of 31 values spreads by a fifth of what they do."""
LEAST_STEPS = 8
"""Steps before the first is judged; the first ones compile and fill caches."""
LATE_RATIO = 1.25
"""A step is late that takes this much of what is normal: healthy steps of one rank vary by 2 to 5 %."""
_LARGEST = 1.0


class Variation:
    """Sums over the steps of one rank."""

    def __init__(self) -> None:
        self.terms: dict[str, float] = {}
        """Sums of squared relative deviations; a term that is not known is left out."""
        self.microbatches = 0
        """Microbatches of the steps that show them."""
        self.late_steps = 0
        self.late_seconds = 0.0
        """Time of late steps beyond what is normal."""
        self._local = RunningMedian(WINDOW_STEPS)
        self._work = RunningMedian(WINDOW_STEPS)

    def add(self, step: StepParts) -> None:
        """Take a completed step; one whose sums overflowed is ignored."""
        if not (step.local_seconds < math.inf and step.work < math.inf):
            return
        if step.local_seconds:  # else it is not known
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
        a = _deviation(local / normal)
        terms = self.terms
        terms["local"] = terms.get("local", 0.0) + a * a
        if normal_work:
            b = _deviation(work / normal_work)
            terms["work"] = terms.get("work", 0.0) + b * b
            terms["local_and_work"] = terms.get("local_and_work", 0.0) + (a + b) ** 2

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


_MOST_STEPS = 64
"""Steps kept until they are counted; beyond, the oldest are dropped."""
_MOST_PHASES = 4096
"""Phases kept of one step; beyond, their time counts as `other`."""
_LEAST_PHASES = 64
_SLACK_SECONDS = 1e-6
"""By how much the parts of a step may exceed it, as sums are rounded."""


class HostedStep(NamedTuple):
    """A step that is over on the host; moments are seconds on the monotonic clock."""

    number: int
    start: float
    end: float


class DeviceStep:
    """One step on the compute stream, in seconds."""

    __slots__ = ("complete", "known", "like", "message_seconds", "phases", "seconds", "waited")

    def __init__(self) -> None:
        self.phases: list[tuple[str, float]] = []
        """Name and own seconds of each, without waits and without the phases inside it."""
        self.like: Mapping[str, float] | None = None
        """Own seconds by phase of the last step whose phases were timed, where its own were not."""
        self.message_seconds = 0.0
        """Waits for sends and receives, a part of `waited`."""
        self.seconds = self.waited = 0.0
        self.known = False
        """Whether own time and waits were told apart."""
        self.complete = False

    def parts(self) -> dict[str, float]:
        """Return seconds by phase, which sum to `seconds`; without communication where that is not known.

        Phases that were not timed share what is left as in the last step whose phases were.
        """
        parts = self._own()
        left = self.seconds - sum(parts.values())
        if self.known:
            left -= self.waited
        if self.like is not None:
            untimed = {name: own for name, own in self.like.items() if name not in parts}
            of_all = sum(untimed.values())
            if of_all > 0.0 and left > 0.0:
                parts.update({name: own * left / of_all for name, own in untimed.items()})
                left = 0.0
        if self.known:
            parts[COMMUNICATION] = parts.get(COMMUNICATION, 0.0) + self.waited
        parts[OTHER] = parts.get(OTHER, 0.0) + max(0.0, left)
        return parts

    def _own(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, own in self.phases:
            found[name] = found.get(name, 0.0) + own
        return found

    def own_by_phase(self) -> dict[str, float]:
        """Return own seconds by phase, with what no phase claims."""
        found = self._own()
        left = self.seconds - self.waited - sum(found.values())
        found[OTHER] = found.get(OTHER, 0.0) + max(0.0, left)
        return found


class DeviceSteps:
    """The steps that the GPU has reported, whole or in part."""

    def __init__(self) -> None:
        self._steps: dict[int, DeviceStep] = {}
        self._most_phases = _MOST_PHASES
        self._timed: Mapping[str, float] = {}
        """Own seconds by phase of the last step whose phases were timed, without those that always are."""

    def keep_at_most(self, records: int) -> None:
        """Bound the phases kept of each step, so that all steps have few more than `records`."""
        self._most_phases = min(_MOST_PHASES, max(_LEAST_PHASES, records // 8))

    def phase(self, name: str, own: float, number: int) -> None:
        """Add a phase of a step, with its own seconds."""
        phases = self._of(number).phases
        if len(phases) < self._most_phases:
            phases.append((name, own))

    def message(self, seconds: float, number: int) -> None:
        """Add how long the stream waited for sends or receives."""
        self._of(number).message_seconds += seconds

    def ended(self, number: int, seconds: float, waited: float, *, known: bool, timed: bool = True) -> None:
        """Note that all of a step is reported. timed: its phases are."""
        step = self._of(number)
        step.seconds, step.waited, step.known, step.complete = seconds, waited, known, True
        step.message_seconds = min(step.message_seconds, waited)
        if not sum(own for _, own in step.phases) + waited <= seconds + _SLACK_SECONDS:
            step.phases, step.known = [], False  # no honest records
        elif timed:
            of_all = step.own_by_phase()
            self._timed = {name: own for name, own in of_all.items() if name not in NOT_COMPUTE}
        else:
            step.like = self._timed

    def __contains__(self, number: int) -> bool:
        step = self._steps.get(number)
        return step is not None and step.complete

    def take(self, number: int) -> DeviceStep | None:
        """Return a step that is reported whole, and forget it; None if it is not."""
        step = self._steps.pop(number, None)
        return step if step is not None and step.complete else None

    def _of(self, number: int) -> DeviceStep:
        step = self._steps.get(number)
        if step is None:
            if len(self._steps) == _MOST_STEPS:
                del self._steps[next(iter(self._steps))]
            step = self._steps[number] = DeviceStep()
        return step
