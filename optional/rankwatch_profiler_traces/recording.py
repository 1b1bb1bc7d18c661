"""What one trace holds of the work of its rank: kernels, operators, collectives, phases and steps.

An event costs 8 to 40 bytes here, in arrays; names are dropped as soon as they are understood. Collectives
and messages are known by their kernel, by the arguments that PyTorch writes to it, or by the annotation of a
host backend.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, NamedTuple

import msgspec

from rankwatch_profiler_traces.phases import Phase, Step, phase_of
from rankwatch_profiler_traces.stream import UNREADABLE, Event

_DEVICE_PREFIXES = ("nccl", "rccl", "msccl", "mccl", "hccl")
"""Kernels of NCCL (ncclKernel_, ncclDevKernel_, ncclSymDevKernel_) and of those that took its form."""
_HOST_BACKENDS = ("gloo:", "mpi:", "ucc:")
"""Their annotation lasts from beginning to end. That of `nccl:` is only the call."""
_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "allreduce": "all_reduce",
        "allgather": "all_gather",
        "reducescatter": "reduce_scatter",
        "alltoall": "all_to_all",
        "broadcast": "broadcast",
        "sendrecv": "send_recv",
        "recv": "recv",
        "send": "send",
        "barrier": "barrier",
        "reduce": "reduce",
        "gather": "gather",
        "scatter": "scatter",
    }
)
"""Letters of a name, as it may begin -> the operation."""
_NO_LETTERS = re.compile(r"[^a-z]")
_KERNEL = re.compile(r"^\w*?kernel_?", re.IGNORECASE)
_BYTES: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("byte", "char", "bool", "uint8", "int8", "float8e4m3fn", "float8e5m2"), 1),
        **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16"), 2),
        **dict.fromkeys(("float", "int", "float32", "int32"), 4),
        **dict.fromkeys(("double", "long", "longint", "float64", "int64", "complexfloat"), 8),
    }
)
_MOST_TEXT = 200
_GROUP_KEYS = ("Process Group Name", "Process Group Description", "Process Group Ranks")


class _Arguments(msgspec.Struct, gc=False):
    """Types are not taken for granted: versions differ, and one odd value must not cost the others."""

    external: object = msgspec.field(default=None, name="External id")
    correlation: object = None
    name: object = msgspec.field(default=None, name="Collective name")
    group: object = msgspec.field(default=None, name=_GROUP_KEYS[0])
    group_description: object = msgspec.field(default=None, name=_GROUP_KEYS[1])
    group_ranks: object = msgspec.field(default=None, name=_GROUP_KEYS[2])
    elements_in: object = msgspec.field(default=None, name="In msg nelems")
    elements_out: object = msgspec.field(default=None, name="Out msg nelems")
    type_name: object = msgspec.field(default=None, name="dtype")
    destination: object = msgspec.field(default=None, name="Dst Rank")
    source: object = msgspec.field(default=None, name="Src Rank")
    shapes: object = msgspec.field(default=None, name="Input Dims")
    types: object = msgspec.field(default=None, name="Input type")


_ARGUMENTS = msgspec.json.Decoder(_Arguments)


class Described(NamedTuple):
    """What PyTorch wrote to a call; nothing but defaults where it wrote nothing."""

    external: int = -1
    correlation: int = -1
    name: str = ""
    group: str = ""
    group_description: str = ""
    group_ranks: str = ""
    size_bytes: int = 0
    """The larger of input and output; 0 where it is unknown."""
    destination: int = -1
    source: int = -1

    @classmethod
    def of(cls, args: bytes | msgspec.Raw) -> Described:
        """Describe by the arguments of an event; those that are no JSON object, or too deep, give nothing."""
        try:
            return cls._of(_ARGUMENTS.decode(args))
        except UNREADABLE:
            return cls()

    @classmethod
    def _of(cls, found: _Arguments) -> Described:
        return cls(
            external=_whole(found.external),
            correlation=_whole(found.correlation),
            name=_text(found.name),
            group=_text(found.group),
            group_description=_text(found.group_description),
            group_ranks=_text(found.group_ranks),
            size_bytes=max(_message_bytes(found), _shape_bytes(found.shapes, found.types)),
            destination=_whole(found.destination),
            source=_whole(found.source),
        )


class Call(NamedTuple):
    """One run of a collective on one rank, in microseconds."""

    begin: float
    length: float
    name: str
    described: Described
    launch: int
    """Correlation of the call that started its kernel; -1 for none."""
    on_host: bool


def is_device_collective(kernel: str) -> bool:
    """Return True for a kernel that communicates."""
    return kernel.startswith(_DEVICE_PREFIXES) or kernel[:6].lower().startswith(_DEVICE_PREFIXES)


def is_host_collective(annotation: str) -> bool:
    """Return True for an annotation that lasts as long as a collective of the host."""
    return annotation.startswith(_HOST_BACKENDS)


def name_of_kernel(kernel: str) -> str:
    """Return AllReduce_Sum_f32_RING_LL of `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`."""
    return _KERNEL.sub("", kernel.partition("(")[0])[:_MOST_TEXT]


def operation_of(name: str) -> str:
    """Return the name in the table: all_reduce for allreduce, AllReduce_Sum_f32 and _allreduce_base alike."""
    letters = _NO_LETTERS.sub("", name.lower())
    for beginning, operation in _NAMES.items():
        if letters.startswith(beginning):
            return operation
    return name.strip("_ ").lower() or "collective"


def operation_of_call(call: Call, described: Described, rank: int) -> str:
    """Return the name for a call; of one that sends and receives, what its rank does in it, if known."""
    operation = operation_of(described.name or call.name)
    if operation == "send_recv" or (operation == "coalesced" and "sendrecv" in call.name.lower()):
        if described.destination >= 0 and described.destination != rank:
            return "send"
        if described.source >= 0 and described.source != rank:
            return "recv"
        return "send_recv"
    return operation


def is_message(operation: str) -> bool:
    """Return True for what has two ends, each with a name of its own."""
    return operation in ("send", "recv")


def _whole(value: object) -> int:
    if isinstance(value, str):
        value = int(value) if value.strip().isdecimal() and len(value) < 18 else -1
    return value if isinstance(value, int) and abs(value) < 1 << 62 else -1


def _text(value: object) -> str:
    if isinstance(value, list):
        return str(value)[:_MOST_TEXT]
    return value[:_MOST_TEXT] if isinstance(value, str) else "" if value is None else str(value)[:_MOST_TEXT]


def _message_bytes(found: _Arguments) -> int:
    elements = max(_whole(found.elements_in), _whole(found.elements_out), 0)
    return elements * _bytes_of(found.type_name)


def _shape_bytes(shapes: object, types: object) -> int:
    """Return the bytes of the first input, as gloo records it: [[263168]] and ["float"]."""
    if not (isinstance(shapes, Sequence) and shapes and isinstance(types, Sequence) and types):
        return 0
    shape = shapes[0]
    if not isinstance(shape, list) or not shape or not all(isinstance(each, int) for each in shape):
        return 0
    elements = 1
    for each in shape:
        elements *= max(0, each)
    return elements * _bytes_of(types[0]) if elements < 1 << 60 else 0


def _bytes_of(type_name: object) -> int:
    """Return the bytes of an element of this type; 0 for a type that is not known."""
    if not isinstance(type_name, str):
        return 0
    return _BYTES.get(_NO_LETTERS_OR_DIGITS.sub("", type_name.lower().removeprefix("c10::")), 0)


_NO_LETTERS_OR_DIGITS = re.compile(r"[^a-z0-9]")


_STEP = re.compile(r"ProfilerStep\s?#(\d{1,15})")
_BACKWARD_OPERATOR = "autograd::engine::evaluate_function"
_DESCRIPTION = "record_param_comms"
_NO_COMPUTE = ("c10d::", _DESCRIPTION)
_MOST_MICROSECONDS = 1e18
_MOST_CALLS = 500_000
"""Of one trace; each takes some 600 bytes."""


class _Link(msgspec.Struct, gc=False):
    correlation: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 62)] = -1


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
    """Return False for NaN too."""
    return abs(begin) < _MOST_MICROSECONDS and 0.0 <= length < _MOST_MICROSECONDS


_LINK = msgspec.json.Decoder(_Link)


def _correlation(event: Event) -> int:
    try:
        return _LINK.decode(event.args).correlation
    except UNREADABLE:
        return -1
