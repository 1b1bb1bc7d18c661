"""Brings together what belongs to one step: its own time, its work, its microbatches.

Work and phases on the GPU's clock are recorded with the number of their step. The GPU reports a phase
after the host has gone on, so a step is complete there once the GPU reports a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rankwatch_agent.training.split import Interval

_MAX_OPEN_STEPS = 64
"""Steps kept until they are complete; the host runs ahead of the GPU by a few."""
_MAX_MICROBATCHES = 4096
_FORWARD, _BACKWARD = "forward", "backward"


@dataclass(slots=True)
class StepParts:
    """One step of a rank."""

    local_seconds: float = 0.0
    """Own time, checkpoints and evaluation left out."""
    work: float = 0.0
    """Tokens; 0 where the run reports none."""
    forward_seconds: list[float] = field(default_factory=list)
    """Of each microbatch, in order, blocked time left out."""
    backward_seconds: list[float] = field(default_factory=list)
    ended: bool = False

    def phase(self, name: str, seconds: float) -> None:
        """A phase of the step took this long, blocked time left out."""
        if name == _FORWARD:
            found = self.forward_seconds
        elif name == _BACKWARD:
            found = self.backward_seconds
        else:
            return
        if len(found) < _MAX_MICROBATCHES:
            found.append(seconds)

    def phases(self, phases: Sequence[Interval], seconds: Sequence[float]) -> None:
        """Likewise for the phases of a step, all at once."""
        forward, backward = self.forward_seconds, self.backward_seconds
        for (_, _, name), took in zip(phases, seconds, strict=True):
            if name == _FORWARD:
                forward.append(took)
            elif name == _BACKWARD:
                backward.append(took)
        del forward[_MAX_MICROBATCHES:], backward[_MAX_MICROBATCHES:]


class OpenSteps:
    """Steps that are not complete; `complete` takes each that is."""

    def __init__(self, complete: Callable[[StepParts], None]) -> None:
        self._complete = complete
        self._steps: dict[int, StepParts] = {}
        self._device_step: int | None = None
        """Latest step of which the GPU reported a phase."""

    def work(self, number: int, tokens: float) -> None:
        """Work was done in a step."""
        self.of(number).work += tokens

    def device_phase(self, number: int, name: str, local_seconds: float) -> None:
        """The GPU passed the end of a phase; steps before it are complete."""
        if self._device_step is None or number > self._device_step:
            self._device_step = number
            for each in [each for each, step in self._steps.items() if step.ended and each < number]:
                self._complete(self._steps.pop(each))
        step = self.of(number)
        step.local_seconds += local_seconds
        step.phase(name, local_seconds)

    def ended(self, number: int) -> None:
        """The host told all it will about a step."""
        if self._device_step is None or self._device_step > number:
            step = self._steps.pop(number, None)
            self._complete(StepParts() if step is None else step)
        else:
            self.of(number).ended = True

    def begin_process(self) -> None:
        """Another process takes the rank, and may go back to earlier steps."""
        self._steps.clear()
        self._device_step = None

    def of(self, number: int) -> StepParts:
        """What is known of a step."""
        step = self._steps.get(number)
        if step is None:
            if len(self._steps) == _MAX_OPEN_STEPS:
                del self._steps[next(iter(self._steps))]
            step = self._steps[number] = StepParts()
        return step
