"""What one trace holds of the work of its rank: kernels, operators, collectives, phases and steps.

An event costs 8 to 40 bytes here, in arrays; names are dropped as soon as they are understood.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

import msgspec

from rankwatch_diagnosis.traces.collectives import (
    Call,
    Described,
    is_device_collective,
    is_host_collective,
    name_of_kernel,
)
from rankwatch_diagnosis.traces.phases import Phase, phase_of
from rankwatch_diagnosis.traces.stream import UNREADABLE, Event

_STEP = re.compile(r"ProfilerStep\s?#(\d{1,15})")
_BACKWARD_OPERATOR = "autograd::engine::evaluate_function"
_DESCRIPTION = "record_param_comms"
_NO_COMPUTE = ("c10d::", _DESCRIPTION)
_MOST_MICROSECONDS = 1e18
_MOST_CALLS = 500_000
"""Of one trace; each takes some 600 bytes."""


class _Link(msgspec.Struct, gc=False):
    correlation: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 62)] = -1


class Step(NamedTuple):
    """A step as the trace numbers it, in microseconds."""

    number: int
    begin: float
    end: float


class Spans:
    """Intervals of microseconds, each with a number for what it belongs to (a thread, a launch)."""

    def __init__(self) -> None:
        self.begin = array("d")
        self.length = array("d")
        self.of = array("q")

    def add(self, begin: float, length: float, of: int) -> None:
        """Add one."""
        self.begin.append(begin)
        self.length.append(length)
        self.of.append(of)

    def __len__(self) -> int:
        return len(self.begin)


class Recording:
    """Filled event by event, in any order."""

    def __init__(self) -> None:
        self.kernels = Spans()
        """Compute and copies on the device, by the correlation of their launch."""
        self.launches = Spans()
        """Calls on the host that start them, by correlation."""
        self.launch_thread = array("q")
        self.operators = Spans()
        """On the host, nested ones too, by thread."""
        self.phases: dict[Phase, Spans] = {phase: Spans() for phase in Phase}
        """Stretches of the host that are known to belong to a phase, by thread."""
        self.steps: list[Step] = []
        self.device_steps: list[Step] = []
        self.calls: list[Call] = []
        """Collectives and messages."""
        self.described: dict[int, Described] = {}
        """External id -> what the host knew of a call."""
        self.unusable = 0
        """Events without a usable time."""
        self.left_out = 0
        """Calls beyond what is kept."""
        self._threads: dict[tuple[object, object], int] = {}
        self._take: Mapping[str, Callable[[Event, float], None]] = {
            "kernel": self._kernel,
            "gpu_memcpy": self._device,
            "gpu_memset": self._device,
            "memcpy": self._device,
            "memset": self._device,
            "cuda_runtime": self._launch,
            "cuda_driver": self._launch,
            "xpu_runtime": self._launch,
            "runtime": self._launch,
            "cpu_op": self._operator,
            "operator": self._operator,
            "user_annotation": self._annotation,
            "gpu_user_annotation": self._device_annotation,
        }

    def add(self, events: list[Event]) -> None:
        """Take what is of use of these events."""
        take = self._take
        for event in events:
            if event.ph != "X":
                continue
            handle = take.get(event.cat) or take.get(event.cat.lower())
            if handle is None:
                continue
            begin, length = event.ts, event.dur
            if begin is not None and length is not None and _usable(begin, length):
                handle(event, length)
            else:
                self.unusable += 1

    def _thread(self, event: Event) -> int:
        return self._threads.setdefault((event.pid, event.tid), len(self._threads))

    def _kernel(self, event: Event, length: float) -> None:
        if not is_device_collective(event.name):
            self._device(event, length)
            return
        described = Described.of(event.args)
        self._call(
            Call(
                begin=event.ts or 0.0,
                length=length,
                name=name_of_kernel(event.name),
                described=described,
                launch=described.correlation,
                on_host=False,
            )
        )

    def _device(self, event: Event, length: float) -> None:
        self.kernels.add(event.ts or 0.0, length, _correlation(event))

    def _launch(self, event: Event, length: float) -> None:
        correlation = _correlation(event)
        if correlation > 0:
            self.launches.add(event.ts or 0.0, length, correlation)
            self.launch_thread.append(self._thread(event))

    def _operator(self, event: Event, length: float) -> None:
        name = event.name
        if name == _DESCRIPTION:
            described = Described.of(event.args)
            if described.external > 0 and len(self.described) < _MOST_CALLS:
                self.described[described.external] = described
        if name.startswith(_NO_COMPUTE):
            return
        thread = self._thread(event)
        self.operators.add(event.ts or 0.0, length, thread)
        if name.startswith(_BACKWARD_OPERATOR):
            self.phases[Phase.BACKWARD].add(event.ts or 0.0, length, thread)

    def _annotation(self, event: Event, length: float) -> None:
        name = event.name
        begin = event.ts or 0.0
        if is_host_collective(name):
            described = Described.of(event.args)
            self._call(Call(begin, length, name.partition(":")[2], described, launch=-1, on_host=True))
            return
        if (step := _STEP.match(name)) is not None:
            self.steps.append(Step(int(step[1]), begin, begin + length))
        elif (phase := phase_of(name)) is not None:
            self.phases[phase].add(begin, length, self._thread(event))

    def _device_annotation(self, event: Event, length: float) -> None:
        if (step := _STEP.match(event.name)) is not None:
            begin = event.ts or 0.0
            self.device_steps.append(Step(int(step[1]), begin, begin + length))

    def _call(self, call: Call) -> None:
        if len(self.calls) < _MOST_CALLS:
            self.calls.append(call)
        else:
            self.left_out += 1


def _usable(begin: float, length: float) -> bool:
    """False for NaN too."""
    return abs(begin) < _MOST_MICROSECONDS and 0.0 <= length < _MOST_MICROSECONDS


_LINK = msgspec.json.Decoder(_Link)


def _correlation(event: Event) -> int:
    try:
        return _LINK.decode(event.args).correlation
    except UNREADABLE:
        return -1
