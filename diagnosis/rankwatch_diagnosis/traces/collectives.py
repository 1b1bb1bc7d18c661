"""Collectives and messages as a trace names them: by kernel, by the arguments that PyTorch writes to it, by
the annotation of a host backend.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from rankwatch_diagnosis.traces.stream import UNREADABLE

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
        """By the arguments of an event; those that are no JSON object, or nested too deep, give nothing."""
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
    """True for a kernel that communicates."""
    return kernel.startswith(_DEVICE_PREFIXES) or kernel[:6].lower().startswith(_DEVICE_PREFIXES)


def is_host_collective(annotation: str) -> bool:
    """True for an annotation that lasts as long as a collective of the host."""
    return annotation.startswith(_HOST_BACKENDS)


def name_of_kernel(kernel: str) -> str:
    """AllReduce_Sum_f32_RING_LL of `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`."""
    return _KERNEL.sub("", kernel.partition("(")[0])[:_MOST_TEXT]


def operation_of(name: str) -> str:
    """The name in the table: all_reduce for allreduce, AllReduce_Sum_f32 and _allreduce_base alike."""
    letters = _NO_LETTERS.sub("", name.lower())
    for beginning, operation in _NAMES.items():
        if letters.startswith(beginning):
            return operation
    return name.strip("_ ").lower() or "collective"


def operation_of_call(call: Call, described: Described, rank: int) -> str:
    """The same of a call. Of a kernel that sends and receives it is what its rank does in it, if known."""
    operation = operation_of(described.name or call.name)
    if operation == "send_recv" or (operation == "coalesced" and "sendrecv" in call.name.lower()):
        if described.destination >= 0 and described.destination != rank:
            return "send"
        if described.source >= 0 and described.source != rank:
            return "recv"
        return "send_recv"
    return operation


def is_message(operation: str) -> bool:
    """True for what has two ends, each with a name of its own."""
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
    """Of the first input, as gloo records it: [[263168]] and ["float"]."""
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
    """0 for a type that is not known."""
    if not isinstance(type_name, str):
        return 0
    return _BYTES.get(_NO_LETTERS_OR_DIGITS.sub("", type_name.lower().removeprefix("c10::")), 0)


_NO_LETTERS_OR_DIGITS = re.compile(r"[^a-z0-9]")
