"""Assembles steps from the records of a rank: phases and collectives come before the step that holds them.

A backend thread records the completion of a collective, maybe just after the step's own record. So a step is
settled when the next one arrives, or when the rank has been quiet for a moment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from rankwatch.conventions.states import NOT_COMPUTE
from rankwatch.conventions.vocabulary import COMMUNICATION, OTHER, TOKENS
from rankwatch_agent.training.goodput.rank_ledger import RankLedger
from rankwatch_agent.training.steps.split import Collective, Interval, message_seconds, split_step
from rankwatch_agent.training.steps.timeouts import SECTIONS, LearntTimeouts
from rankwatch_agent.training.steps.variation import DeviceSteps, HostedStep, OpenSteps, StepParts, Variation

_MOST_PENDING = 4096
"""Phases or collectives kept for a step that does not end; beyond, the oldest are dropped."""
SETTLE_SECONDS = 0.5
"""Quiet time after which the last step is settled."""

_DEVICE_SECONDS = 60.0
"""Time after which a step counts that the GPU has not reported, if its process is gone or later steps have
ended: these report what the GPU has finished by then."""
_NO_STEP = -1
"""Number of what is recorded before any step, and in a run that has none."""
_MAX_HELD_STEPS = 64
"""Steps whose work is held back; beyond, that of the oldest counts at once."""


class WorkTotals:
    """Work of the steps that are settled, and of what lies outside of steps.

    The work of a step is recorded while the step is open, but the step itself is counted when it is settled.
    A rate over few steps would divide the one by the other and be wrong by a step, so work waits for its
    step.
    """

    def __init__(self) -> None:
        self.by_unit: dict[str, float] = {}
        self._held: dict[int, dict[str, float]] = {}
        self._settled = _NO_STEP
        self._of_last_process: dict[str, float] | None = None
        """Work of the last step of a process that is gone, until that step is settled."""

    def add(self, number: int, unit: str, amount: float) -> None:
        """Work was done in a step, or after the one of this number."""
        if number in (_NO_STEP, self._settled):
            self._count(unit, amount)
            return
        held = self._held.get(number)
        if held is None:
            if len(self._held) == _MAX_HELD_STEPS:
                self._release(next(iter(self._held)))
            held = self._held[number] = {}
        held[unit] = held.get(unit, 0.0) + amount

    def settle(self, number: int) -> None:
        """Count the work of a settled step, and of steps before it that left no record."""
        if self._of_last_process is not None:
            self._count_all(self._of_last_process)
            self._of_last_process = None
            return  # the steps of the present process may go back behind its number
        self._settled = number
        for each in [each for each in self._held if each <= number]:
            self._release(each)

    def begin_process(self, pending: int | None) -> None:
        """Note that another process takes the rank, and repeats the work of the last one's unfinished steps.

        pending: the step that ended and is not settled yet.
        """
        if pending is not None and self._of_last_process is None:
            self._of_last_process = self._held.pop(pending, {})
        self._held = {}
        self._settled = _NO_STEP

    def _release(self, number: int) -> None:
        self._count_all(self._held.pop(number))

    def _count_all(self, work: dict[str, float]) -> None:
        for unit, amount in work.items():
            self._count(unit, amount)

    def _count(self, unit: str, amount: float) -> None:
        self.by_unit[unit] = self.by_unit.get(unit, 0.0) + amount


class Unsettled:
    """What was recorded since the last settled step.

    The reader of the records appends to the lists itself: a call for each record would cost more than all
    that is done with it here.
    """

    def __init__(self) -> None:
        self.phases: list[Interval] = []
        self.collectives: list[Collective] = []
        self.most = _MOST_PENDING
        self._before_step = 0
        """Number of phases that were recorded before the step that is settled next."""

    def step_recorded(self) -> None:
        """Note that a step was recorded; it is settled later."""
        self._before_step = len(self.phases)

    def drop_oldest(self) -> list[Interval]:
        """Keep both lists within bounds; returns the phases that are dropped."""
        phases, collectives = self.phases, self.collectives
        if len(collectives) > self.most:
            del collectives[: len(collectives) - self.most]
        if len(phases) <= self.most:
            return []
        over = len(phases) - self.most
        gone = phases[:over]
        del phases[:over]
        self._before_step = max(0, self._before_step - over)
        return gone

    def take_phases(self, start: float, end: float, until: float) -> tuple[list[Interval], list[Interval]]:
        """Return the phases within a step, and those that lie in no step.

        What begins at its end or later, and before `until`, may lie in the next one, and is kept.
        """
        phases, before = self.phases, self._before_step
        later = phases[before:]
        if later and not (end <= min(later)[0] and max(later)[0] < until):
            later, before = [], len(phases)  # one came late, or is no honest record
        inside: list[Interval] = []
        outside: list[Interval] = []
        kept: list[Interval] = []
        for phase in phases[:before]:
            begun, ended, _ = phase
            if end <= begun < until:
                kept.append(phase)
            elif begun >= start and ended <= end:
                inside.append(phase)
            else:
                outside.append(phase)
        phases[:] = kept + later
        return inside, outside

    def take_collectives(self, start: float, end: float, until: float) -> list[Collective]:
        """Return the collectives enqueued within a step; those of the next one are kept likewise."""
        found = self.collectives
        if not found:
            return []
        found.sort()  # they come nearly in order, and three searches cost less than a look at each
        beyond = bisect_left(found, (end,))
        held = found[bisect_left(found, (start,)) : beyond]
        found[:] = found[beyond : bisect_left(found, (until,))]
        return held

    def take_ended(self, names: tuple[str, ...], moment: float) -> list[Interval]:
        """Return the phases of these names that ended by the moment, while no step is to be settled."""
        if not any(name in names for _, _, name in self.phases):
            return []
        gone = [each for each in self.phases if each[2] in names and each[1] <= moment]
        self.phases[:] = [each for each in self.phases if not (each[2] in names and each[1] <= moment)]
        return gone


Settled = Callable[[int, float, float, Sequence[Interval], Sequence[Collective]], None]
"""Takes a settled step: number, start, end, its phases, its collectives."""


class StepAssembler:
    """Totals over the steps of one rank, in seconds.

    observe: takes the duration of each step. settled: takes each step as a whole.
    """

    def __init__(
        self,
        timeouts: LearntTimeouts,
        observe: Callable[[float], None],
        settled: Settled | None = None,
    ) -> None:
        self.steps = 0
        self.seconds = 0.0
        self.local_seconds = 0.0
        self.local_steps = 0
        """Steps whose own time is known, and in `local_seconds` and the next three."""
        self.known_seconds = 0.0
        """Time of these steps."""
        self.arrival_seconds = 0.0
        """Their local time with sends and receives."""
        self.compute_seconds = 0.0
        """Their local time without waits for data, checkpoints and evaluations."""
        self.message_seconds = 0.0
        """Time of steps blocked in sends and receives, a part of communication."""
        self.phase_seconds: dict[str, float] = {}
        """Parts of steps by phase; they sum to `seconds`."""
        self.section_seconds: dict[str, float] = {}
        """Phases outside of any step."""
        self.last_step = -1
        self.device = DeviceSteps()
        """Steps by the GPU's clock that are not counted yet."""
        self.local_known = True
        """Whether own time and waits of the last step could be told apart; not in a CUDA graph with
        collectives."""
        self.unsettled = Unsettled()
        """Phases and collectives, appended by the reader."""
        self.variation = Variation()
        self.work_done = WorkTotals()
        self._open = OpenSteps(self.variation.add)
        self._timeouts = timeouts
        self._observe = observe
        self._settled = settled
        self.ledger: RankLedger | None = None
        """Takes each step and section, where somebody keeps account of the time."""
        self._pending: tuple[float, float, int, bool] | None = None
        self._on_device: dict[int, HostedStep] = {}
        """Steps that are settled on the host, and that the GPU has not finished."""
        self._last_end: float | None = None
        """Of the last step that was settled."""
        self._sections_since = 0.0
        """Seconds of checkpoints and evaluations that lay outside of steps, since then."""

    @property
    def all_settled(self) -> bool:
        """Whether no step waits to be settled on the host."""
        return self._pending is None

    def begin_process(self) -> None:
        """Note that another process takes the rank: the GPU reports no more of the one before."""
        self._on_device.clear()
        self.device = DeviceSteps()
        self._open.begin_process()
        self.work_done.begin_process(self._pending[2] if self._pending is not None else None)

    def keep_at_most(self, records: int) -> None:
        """Bound what is kept until its step is settled, in records of each kind."""
        self.unsettled.most = min(_MOST_PENDING, records)
        self._open.keep_at_most(records)
        self.device.keep_at_most(records)

    def work(self, number: int, unit: str, amount: float) -> None:
        """Work was done in a step; its time is compared with its tokens."""
        self.work_done.add(number, unit, amount)
        if unit == TOKENS:
            self._open.work(number, amount)

    def device_step(
        self, number: int, seconds: float, waited: float, *, known: bool, timed: bool = True
    ) -> None:
        """Take a step that the GPU has finished, whose phases and messages `device` has taken already. timed:
        its phases were."""
        self.device.ended(number, seconds, waited, known=known, timed=timed)
        hosted = self._on_device.pop(number, None)
        if hosted is not None:
            self._count_on_device(hosted)
        elif self._pending is None or self._pending[2] != number:
            self.device.take(number)  # too late; the next epoch may have a step of this number

    def step(self, start: float, end: float, number: int, *, on_device: bool = False) -> None:
        """Take a step that ended, and settle the one before it. on_device: `device_step` follows some steps
        later."""
        self._outside(self.unsettled.drop_oldest())
        if self._pending is not None:
            self._settle(*self._pending, until=end)
        self._pending = (start, end, number, on_device)
        self.unsettled.step_recorded()

    def settle(self, now: float, idle_until: float, *, living: bool = False) -> None:
        """Settle the last step if it ended long enough ago, and sections that no step can hold.

        idle_until: start of the open step, or now where none is open; what ended before it lies in no later
            step.
        living: the process may report what its GPU has done, at the end of its next step, however late.
        """
        self._outside(self.unsettled.drop_oldest())
        if self._pending is not None and now - self._pending[1] > SETTLE_SECONDS:
            self._settle(*self._pending, until=now)
            self._pending = None
        if self._pending is None:
            self._outside(self.unsettled.take_ended(SECTIONS, idle_until))
        if not living:
            self._give_up(now - _DEVICE_SECONDS)

    def _settle(self, start: float, end: float, number: int, on_device: bool, *, until: float) -> None:
        """Split a step by `split_step` and count its parts.

        What begins between its end and `until` may belong to the next step. What begins later is no honest
        record, and would be examined again with each step.
        """
        inside, outside = self.unsettled.take_phases(start, end, until)
        self._outside(outside)
        held = self.unsettled.take_collectives(start, end, until)
        if self._settled is not None:
            self._settled(number, start, end, inside, held)
        parts, own = split_step(start, end, inside, held)
        sections = 0.0
        for name in SECTIONS:
            if seconds := parts.get(name, 0.0):
                self._timeouts.section(name, seconds)
                sections += seconds
        self._learn(start, end, sections)
        self._give_up(start - _DEVICE_SECONDS)
        if on_device:
            self._await_device(HostedStep(number, start, end))
            return
        if self.ledger is not None:
            self.ledger.step(number, start, end, parts, self._normal_pause)
        step = self._open.of(number)
        step.phases(inside, own)
        self._count(end - start, parts, number, step, message_seconds(start, end, held))

    def _give_up(self, before: float) -> None:
        """Count the steps that ended before this moment, and that the GPU reports no more."""
        for step in [each for each in self._on_device.values() if each.end < before]:
            del self._on_device[step.number]
            self._count_on_device(step)

    def _await_device(self, step: HostedStep) -> None:
        """Count a step once the GPU is done: on a GPU the host's phases show when work was enqueued."""
        if step.number in self.device:
            self._count_on_device(step)
            return
        if (before := self._on_device.pop(step.number, None)) is not None:  # an epoch of few steps
            self._count_on_device(before)
        if len(self._on_device) == _MAX_HELD_STEPS:
            self._count_on_device(self._on_device.pop(next(iter(self._on_device))))
        self._on_device[step.number] = step

    def _count_on_device(self, hosted: HostedStep) -> None:
        """Count a step by the GPU's clock; one that the GPU did not report as time of no known use."""
        number = hosted.number
        found = self.device.take(number)
        step, messages = self._open.of(number), 0.0
        if found is None:
            duration = hosted.end - hosted.start
            parts = {OTHER: duration}
            self.local_known = False
        else:
            duration, parts = found.seconds, found.parts()
            self.local_known = found.known
            messages = found.message_seconds
            if found.like is None:
                for name, seconds in found.phases:
                    step.phase(name, seconds)
        if self.ledger is not None:
            scale = (hosted.end - hosted.start) / duration if duration > 0.0 else 0.0
            scaled = {name: seconds * scale for name, seconds in parts.items()}
            self.ledger.step(number, hosted.start, hosted.end, scaled, self._normal_pause)
        self._count(duration, parts, number, step, messages)

    def _count(
        self, duration: float, parts: dict[str, float], number: int, step: StepParts, messages: float
    ) -> None:
        self.steps += 1
        self.last_step = number
        self.seconds += duration
        self.message_seconds += messages
        local = 0.0
        if self.local_known:
            local = duration - parts.get(COMMUNICATION, 0.0)
            self.local_steps += 1
            self.known_seconds += duration
            self.local_seconds += local
            self.arrival_seconds += local + messages
            self.compute_seconds += local - sum(parts.get(name, 0.0) for name in NOT_COMPUTE)
        totals = self.phase_seconds
        for name, seconds in parts.items():
            totals[name] = totals.get(name, 0.0) + seconds
        self._observe(duration)
        sections = sum(parts.get(name, 0.0) for name in SECTIONS)
        if local > sections:
            step.local_seconds += local - sections
        self._open.ended(number)
        self.work_done.settle(number)

    def _learn(self, start: float, end: float, sections: float) -> None:
        """Learn what is normal from a step and the pause before it, as a stall may begin in either. A loader
        or an evaluation outside of any phase makes such pauses."""
        pause = 0.0
        if self._last_end is not None:
            pause = max(0.0, start - self._last_end - self._sections_since)
        self._last_end, self._sections_since = end, 0.0
        self._timeouts.step(pause + end - start - sections, end)

    def _outside(self, phases: Iterable[Interval]) -> None:
        for began, ended, name in phases:
            seconds = ended - began
            self.section_seconds[name] = self.section_seconds.get(name, 0.0) + seconds
            if name in SECTIONS:
                self._timeouts.section(name, seconds)
                self._sections_since += seconds
            if self.ledger is not None:
                self.ledger.section(began, ended, name)

    def _normal_pause(self) -> float | None:
        return self._timeouts.timeout(None)
