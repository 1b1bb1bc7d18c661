"""The timeline of the rank's compute stream: own work by phase, and waits for other ranks.

On the host a phase ends when its work is enqueued, and a collective when the host goes on. So events are
recorded on the compute stream where a phase begins or ends and around each wait, and read some steps later,
once the device has passed them. The time between two events belongs to the phase that was open and, if the
stream waited, to that wait. Idle gaps belong to the phase as well: the host kept the device idle. So a step's
own time is its span on the compute stream less all waits.

Nothing here waits for the device, and nothing is recorded while a CUDA graph is captured or before the
training has shown its device.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from threading import get_ident
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions.states import NOT_COMPUTE
from rankwatch.device.parts import (
    EVENT,
    MOMENT,
    NUMBER,
    NUMBER_BITS,
    Mark,
    PhaseSampling,
    WaitKey,
    write_step,
)
from rankwatch.failures import Failures
from rankwatch.spans import Span, span_of

MOST_MARKS = 16384
"""Events that the device has not passed, or that no step has ended yet; beyond, all of them are dropped."""
_MOST_BETWEEN = 1024
"""Events between two steps, such as those of an evaluation; beyond, the oldest are forgotten."""
MOST_STEPS = 64
"""Steps that the device has not finished; beyond, all of them are dropped."""
_FRESH_SECONDS = 2e-5
"""A phase that begins so soon after the last event shares it, which halves the cost of phases in a row. What
was enqueued in between counts to that phase."""
_clock = time.monotonic


class Stream(Protocol):
    """The compute stream of a device."""

    def event(self) -> Any:
        """Return a new event with `query()` and `elapsed_time(later)` in milliseconds."""

    def record(self, event: Any) -> None:
        """Record the event on the compute stream."""

    def follow(self) -> bool:
        """Take the stream that is current now as the compute stream. Returns True if it is another one."""

    def is_current(self) -> bool:
        """Return True if what this thread enqueues goes to the compute stream."""

    def in_backward(self) -> bool:
        """Return True if this thread executes a backward pass."""

    def is_capturing(self) -> bool:
        """Return True while the process captures a CUDA graph: events can be neither recorded nor queried."""


class _EndedStep(NamedTuple):
    number: int
    began: float
    marks_before_end: int
    """Number of marks up to its last one, and of those that were taken from the front before."""
    unknown: bool
    """Part of it ran in a graph with collectives, or could not be timed."""
    untimed: bool
    """The phases that began inside it have no marks."""


class DeviceTimeline:
    """The timeline of one rank. The training thread, or the backward pass that it waits for, makes the marks.

    clock: the host's, in seconds, the same as that of the black box.
    """

    def __init__(self, writer: Writer, failures: Failures, clock: Callable[[], float] = _clock) -> None:
        self._writer = writer
        self._failures = failures
        self._clock = clock
        self._shown: Stream | None = None
        self._stream: Stream | None = None
        self._thread = 0
        self._free: list[Any] = []
        self._marks: deque[Mark] = deque()
        self._taken = 0
        """Marks that were taken from the front of `_marks`."""
        self._steps: deque[_EndedStep] = deque()
        self._open: list[int] = []
        """The open phases as marks name them, the innermost last."""
        self._times_run = 0
        self._wait: WaitKey | None = None
        self._unknown = self._step_open = self._blind = False
        self._spoiled: tuple[float, float] | tuple[()] = ()
        """The first and the last moment at which `spoil` was called, since the last step."""
        self._began = 0.0
        """Start of the open step, on the host's clock."""
        self._always_timed: set[int] = set()
        """Numbers of the phases that are timed in each step."""
        self._sampling, self._untimed = PhaseSampling(), False
        """Whether the phases of the open step, or of the next one, are not timed."""
        self._last: tuple[Any, float] | None = None
        """The last event of the last step, and its moment on the host's clock."""

    # -- what the training does -------------------------------------------------------------------

    @property
    def stream(self) -> Stream | None:
        """The compute stream; None until a step begins or ends after the training has shown its device."""
        return self._stream

    @property
    def marks_made(self) -> int:
        """Number of marks so far."""
        return self._taken + len(self._marks)

    def use(self, stream: Stream) -> None:
        """Record on this stream from the end of this step on. The first call counts."""
        if self._shown is None:
            self._shown = stream

    def span(self, host: Span, number: int, name: str) -> Span:
        """Return a phase that is timed on the host and on the device. Of closures, as that of the host."""
        if name in NOT_COMPUTE:
            self._always_timed.add(number)
        enter_host, leave_host = host.__enter__, host.__exit__
        phase_began, phase_ended = self.phase_began, self.phase_ended

        def enter() -> None:
            enter_host()
            phase_began(number)

        def leave(
            kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            phase_ended(number)
            leave_host(kind, error, trace)

        return span_of("DeviceSpan", enter, leave)

    def step_began(self, began: float) -> None:
        """Begin a step, in the training thread. began: when the wait for its batch began, or now."""
        same = self._follow()
        if self._stream is not None:
            self._step_open, self._began, self._wait = True, began, None
            if not (same and self._continues(began)):
                self._mark(0.0)

    def step_ended(self, number: int, began: float, ended: float) -> bool:
        """End a step. ended: 0 for now. Returns True if its time on the device will be recorded."""
        if self._stream is None:
            self._follow()  # what comes before the next step may belong to it
            return False
        if not ended:
            self._mark(0.0)
        count = len(self._marks)
        while ended and count and self._marks[count - 1][MOMENT] > ended:
            count -= 1
        unknown = self._unknown or self._blind or self._is_spoilt(began, ended or math.inf)
        untimed = self._untimed
        self._unknown = self._step_open = False
        self._untimed = not self._sampling.times_next(number)
        # A step that was captured whole, or whose events CUDA has refused, has no two of its own.
        if count < self._marks_of_steps() + 2 or self._marks[count - 2][MOMENT] < began:
            return False
        self._steps.append(_EndedStep(number, began, self._taken + count, unknown, untimed))
        if len(self._steps) > MOST_STEPS:
            self._drop()
        return bool(self._steps)

    def step_may_end(self, moment: float) -> None:
        """End the open step at this moment, when a phase has ended, unless more of it follows."""
        if self._untimed and self._step_open:
            self._mark(moment)

    def _is_spoilt(self, began: float, ended: float) -> bool:
        """Return True if `spoil` was called in between. What was called later counts for the next step."""
        if not self._spoiled:
            return False
        first, last = self._spoiled
        self._spoiled = (last, last) if last > ended else ()
        return last >= began and first <= ended

    def _follow(self) -> bool:
        """Take the current stream as the compute stream: between steps it is no side stream. Returns True if
        it is the same as before."""
        stream = self._stream = self._shown
        if stream is None:
            return False
        self._thread = get_ident()
        try:
            if not stream.follow():
                return True
        except Exception as error:  # noqa: BLE001 - called around the trainer's own code
            self._failures.note("follow the compute stream", error)
            self._shown = self._stream = None
        while len(self._marks) > self._marks_of_steps():  # times on two streams cannot be compared
            self._free.append(self._marks.pop()[EVENT])
        return False

    def _marks_of_steps(self) -> int:
        """Return the number of marks up to the last one of the last step."""
        return self._steps[-1].marks_before_end - self._taken if self._steps else 0

    def phase_began(self, number: int, moment: float = 0.0) -> None:
        """Begin a phase, inside the one that is open. moment: on the host's clock; 0 for now."""
        timed = not (self._untimed and self._step_open) or number in self._always_timed
        if self._stream is None or not timed:
            return
        self._close(number)
        self._times_run += 1
        phase = self._times_run << NUMBER_BITS | number
        self._open.append(phase)
        if self._step_open and self._continues(self._began):
            last = self._marks[-1]
            self._marks[-1] = (last[MOMENT], last[EVENT], phase, None)
        else:
            self._mark(moment)

    def _close(self, number: int) -> None:
        """Close this phase if it is open, as it is not inside itself: an exception kept its end from us."""
        for at, phase in enumerate(self._open):
            if phase & NUMBER == number:
                del self._open[at:]
                return

    def phase_ended(self, number: int, moment: float = 0.0) -> None:
        """End the phase that began last."""
        if self._wait is not None:  # an exception kept its end from us
            self._wait, self._unknown = None, True
        if self._open and self._open[-1] & NUMBER == number:
            self._open.pop()
            self._mark(moment)

    def wait_began(self, key: WaitKey, *, current: bool = False) -> bool:
        """Begin a wait of the compute stream, or the host, for other ranks. Outside of steps it may go
        unseen.

        current: the caller knows that it is the compute stream. Returns True if `wait_ended` must follow.
        """
        stream = self._stream
        if stream is None or self._wait is not None or not self._step_open:
            return False
        if not current and not stream.is_current():
            return False
        if get_ident() != self._thread and not stream.in_backward():
            return False
        self._wait = key
        self._mark(0.0)
        return True

    def wait_ended(self) -> None:
        """End the wait: what comes now is the rank's own work again."""
        self._wait = None
        self._mark(0.0)

    def spoil(self) -> None:
        """Spoil the step that holds this moment: its own time cannot be told from its waits."""
        now = self._clock()
        self._spoiled = (self._spoiled[0], now) if self._spoiled else (now, now)

    def step_abandoned(self) -> None:
        """Abandon the open step: what comes now lies in no step."""
        self._unknown, self._step_open = True, False

    def forget(self) -> None:
        """Record nothing more: the run has ended, or a forked child may call nothing of CUDA."""
        self._shown = self._stream = None
        self._step_open = False

    def sees_no_waits(self) -> None:
        """Note that nobody shows the waits, so that own time is never known."""
        self._blind = True

    def _mark(self, moment: float) -> None:
        stream = self._stream
        if stream is None or not self._thread:
            return
        try:
            if stream.is_capturing():
                self._unknown = True
                return
            event = self._free.pop() if self._free else stream.event()
            stream.record(event)
        except Exception as error:  # noqa: BLE001 - called around the trainer's own code
            self._failures.note("record an event on the GPU", error)
            self._unknown = True
            return
        phases = self._open
        self._marks.append((moment or self._clock(), event, phases[-1] if phases else 0, self._wait))
        if not self._step_open:
            self._forget_between()
        if len(self._marks) > MOST_MARKS:
            self._drop()

    def _forget_between(self) -> None:
        """Keep few of the marks that lie in no step: an evaluation may take hours."""
        of_steps = self._marks_of_steps()
        if len(self._marks) - of_steps > _MOST_BETWEEN:
            self._free.append(self._marks[of_steps][EVENT])
            del self._marks[of_steps]

    def _continues(self, began: float) -> bool:
        """Return True if the last mark of the open step is so fresh that what begins now may begin there."""
        if not self._marks:
            return False
        moment, _, _, wait = self._marks[-1]
        return wait is None and moment > began and self._clock() - moment < _FRESH_SECONDS

    def _drop(self) -> None:
        """Let go of all marks: the device does not keep up, or a step does not end."""
        self._writer.integers[Now.DEVICE_MARKS_DROPPED] += len(self._marks)
        self._taken += len(self._marks)
        self._marks.clear()
        self._steps.clear()
        self._last = None
        self._unknown = True

    # -- what the device did ----------------------------------------------------------------------

    def resolve(self) -> None:
        """Record the steps that the device has finished. Never waits."""
        steps, stream = self._steps, self._stream
        while steps and stream is not None and not stream.is_capturing():
            step = steps[0]
            count = step.marks_before_end - self._taken
            if count > 0 and not self._marks[count - 1][EVENT].query():
                return
            steps.popleft()
            marks = [self._marks.popleft() for _ in range(count)]
            before = self._taken
            self._taken += max(0, count)
            early = 0  # between this step and the one before
            while early < count and marks[early][MOMENT] < step.began:
                self._free.append(marks[early][EVENT])
                early += 1
            if count - early > 1:
                self._record(step, marks[early:], before + early)

    def _record(self, step: _EndedStep, marks: list[Mark], marks_before: int) -> None:
        lengths = [a[EVENT].elapsed_time(b[EVENT]) / 1e3 for a, b in pairwise(marks)]
        seconds = sum(lengths)
        began = self._moment_of(marks, seconds)
        ended = write_step(
            self._writer,
            step.number,
            marks,
            lengths,
            began,
            marks_before=marks_before,
            unknown=step.unknown,
            untimed=step.untimed,
        )
        self._sampling.resolved(marks, seconds, untimed=step.untimed)
        self._last = (marks[-1][EVENT], ended)
        self._free += [mark[EVENT] for mark in marks[:-1]]

    def _moment_of(self, marks: list[Mark], seconds: float) -> float:
        """Return when the device passed the first mark, on the host's clock.

        Counted from the last step, so that the drift between the clocks does not add up: the device passes a
        mark neither before it was enqueued nor after it was seen passed.
        """
        moment, first, _, _ = marks[0]
        latest = self._clock() - seconds
        if self._last is not None:
            event, before = self._last
            self._free.append(event)
            moment = max(moment, before + event.elapsed_time(first) / 1e3)
        return min(moment, latest)
