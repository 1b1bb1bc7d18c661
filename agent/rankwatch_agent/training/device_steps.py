"""What the GPU's clock shows of the steps of one rank, until each is counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rankwatch.conventions import COMMUNICATION, OTHER
from rankwatch.conventions.states import NOT_COMPUTE

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
        """Where its phases were not timed: own seconds by phase of the last step whose phases were."""
        self.message_seconds = 0.0
        """Waits for sends and receives, a part of `waited`."""
        self.seconds = self.waited = 0.0
        self.known = False
        """Whether own time and waits were told apart."""
        self.complete = False

    def parts(self) -> dict[str, float]:
        """Seconds by phase, which sum to `seconds`; without communication where that is not known.

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
        """Own seconds by phase, with what no phase claims."""
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
        """A phase of a step, and its own seconds."""
        phases = self._of(number).phases
        if len(phases) < self._most_phases:
            phases.append((name, own))

    def message(self, seconds: float, number: int) -> None:
        """The stream waited so long for sends or receives."""
        self._of(number).message_seconds += seconds

    def ended(self, number: int, seconds: float, waited: float, *, known: bool, timed: bool = True) -> None:
        """All of a step is reported. timed: its phases are."""
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
        """A step that is reported whole, and forget it; None if it is not."""
        step = self._steps.pop(number, None)
        return step if step is not None and step.complete else None

    def _of(self, number: int) -> DeviceStep:
        step = self._steps.get(number)
        if step is None:
            if len(self._steps) == _MOST_STEPS:
                del self._steps[next(iter(self._steps))]
            step = self._steps[number] = DeviceStep()
        return step
