"""Assembles steps from the records of a rank: phases and collectives come before the step that holds them.

The completion of a collective is recorded by a backend thread and may arrive just after the step's
own record, so a step is settled when the next one arrives, or when it has been quiet for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rankwatch.conventions import COMMUNICATION, DATA_WAIT, TOKENS
from rankwatch_agent.training.progress import SECTIONS, Progress
from rankwatch_agent.training.split import Interval, split_step
from rankwatch_agent.training.step_parts import OpenSteps, StepParts
from rankwatch_agent.training.variation import Variation
from rankwatch_agent.training.waits import Waiting
from rankwatch_agent.training.work import WorkTotals

SETTLE_SECONDS = 0.5
_HOST_PHASES = (DATA_WAIT, *SECTIONS)


class StepAssembler:
    """Totals over the steps of one rank, in seconds."""

    def __init__(self, progress: Progress, observe: Callable[[float], None]) -> None:
        self.steps = 0
        self.seconds = 0.0
        self.local_seconds = 0.0
        self.phase_seconds: dict[str, float] = {}
        """Parts of steps; they sum to `seconds`."""
        self.section_seconds: dict[str, float] = {}
        """Phases outside of any step."""
        self.last_step = -1
        self.device_seconds: dict[str, float] = {}
        """Phases by the GPU's own clock; empty where there is none."""
        self.waiting = Waiting()
        """Takes phases and collectives."""
        self.variation = Variation()
        self.work_done = WorkTotals()
        self._open = OpenSteps(self.variation.add)
        self._progress = progress
        self._observe = observe
        self._pending: tuple[float, float, int] | None = None
        self._last_end: float | None = None
        """Of the last step that was settled."""
        self._sections_since = 0.0
        """Seconds of checkpoints and evaluations that lay outside of steps, since then."""

    def begin_process(self) -> None:
        """Another process takes the rank."""
        self._open.begin_process()
        self.work_done.begin_process(self._pending[2] if self._pending is not None else None)

    def work(self, number: int, unit: str, amount: float) -> None:
        """Work was done in a step; tokens are what its time is held against."""
        self.work_done.add(number, unit, amount)
        if unit == TOKENS:
            self._open.work(number, amount)

    def device_phase(self, name: str, seconds: float, local: float, number: int) -> None:
        """The GPU passed the end of a phase; `local` of its seconds came before the last collective."""
        self._open.device_phase(number, name, local)
        self.device_seconds[name] = self.device_seconds.get(name, 0.0) + seconds
        self.local_seconds += local

    def step(self, start: float, end: float, number: int) -> None:
        """A step ended; the one before it is settled."""
        self._outside(self.waiting.let_go_of_oldest())
        if self._pending is not None:
            self._settle(*self._pending, until=end)
        self._pending = (start, end, number)
        self.waiting.note_step()

    def settle(self, now: float, idle_until: float) -> None:
        """Settle the last step if it ended long enough ago, and sections that no step can hold.

        idle_until: start of the step that is open, or now where none is; what ended before lies in no
            step that is still to come.
        """
        self._outside(self.waiting.let_go_of_oldest())
        if self._pending is not None and now - self._pending[1] > SETTLE_SECONDS:
            self._settle(*self._pending, until=now)
            self._pending = None
        if self._pending is None:
            self._outside(self.waiting.take_ended(SECTIONS, idle_until))

    def _settle(self, start: float, end: float, number: int, *, until: float) -> None:
        """Count a step. What begins between its end and `until` may lie in one to come; what begins even
        later is no honest record, and would be looked at again with each step."""
        inside, outside = self.waiting.take_phases(start, end, until)
        self._outside(outside)
        held = self.waiting.take_collectives(start, end, until)
        step = self._open.of(number)
        # The host's phases tell when a GPU's work was enqueued, not how long it took.
        parts = split_step(start, end, inside, held, None if self.device_seconds else step.phases)
        sections = self._count(end - start, parts, number, step)
        self._learn(start, end, sections)
        self._open.ended(number)
        self.work_done.settle(number)

    def _count(self, duration: float, parts: dict[str, float], number: int, step: StepParts) -> float:
        """Count a step, and tell how much of it were sections."""
        self.steps += 1
        self.last_step = number
        self.seconds += duration
        if self.device_seconds:
            # The host runs ahead of the GPU: its phases say when work was enqueued. The rank's own
            # work is what the GPU's clock says, and what the host did while the GPU had nothing.
            local = sum(parts.get(name, 0.0) for name in _HOST_PHASES)
        else:
            local = duration - parts[COMMUNICATION]
        self.local_seconds += local
        totals = self.phase_seconds
        for name, seconds in parts.items():
            totals[name] = totals.get(name, 0.0) + seconds
        self._observe(duration)
        sections = 0.0
        for name in SECTIONS:
            if seconds := parts.get(name, 0.0):
                self._progress.section(name, seconds)
                sections += seconds
        if local > sections:
            step.local_seconds += local - sections
        return sections

    def _learn(self, start: float, end: float, sections: float) -> None:
        """What was normal up to the end of a step: the time before it counts too, as it does where a run
        stands. A loader that is not wrapped, or an evaluation that is not told, makes pauses there."""
        pause = 0.0
        if self._last_end is not None:
            pause = max(0.0, start - self._last_end - self._sections_since)
        self._last_end, self._sections_since = end, 0.0
        self._progress.step(pause + end - start - sections, end)

    def _outside(self, phases: Iterable[Interval]) -> None:
        for began, ended, name in phases:
            seconds = ended - began
            self.section_seconds[name] = self.section_seconds.get(name, 0.0) + seconds
            if name in SECTIONS:
                self._progress.section(name, seconds)
                self._sections_since += seconds
