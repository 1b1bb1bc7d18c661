"""What an entry of a flight recorder stands for: its operation and size, and the call that it belongs to.

ProcessGroupNCCL.cpp records the parts of `batch_isend_irecv` without events (`pointToPoint`), since 2.7 also
those of an uneven `all_gather` or `reduce_scatter` (`collective`): they stay `scheduled` and never retire.
`endCoalescing` records the entry that closes the call, with the numbers of its last part, without tensors and
with `is_p2p` false, before it launches anything. Where `is_p2p` is true there, it means the same."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankwatch_agent.training.flight_recorder.parse import Entry


NO_PART = -1
UNCLOSED = -2
"""The entry that closes the call is not in the dump: it was left out because it is complete, or the rank has
not come to it and has launched nothing."""
SUFFIX = "coalesced"
_BATCH = ":" + SUFFIX
_NAMES_OF_PARTS = ("_broadcast_oop", "_reduce_oop")
"""Operations that exist only inside a coalesced call."""
MAY_BE_COALESCED = (SUFFIX, *_NAMES_OF_PARTS)
"""Ends of the names of what may belong to a coalesced call, beside sends and receives."""
_Group = tuple[int, tuple[str, str] | None]


def join_calls(entries: Sequence[Entry]) -> None:
    """Give each part the state of its call, and each closing entry the kind of its parts, in place.

    Parts have the numbers of the entry that closes them, and precede it in their group. Where the ring begins
    between the two, the entry is taken for a batch of messages: that is no evidence against any rank.
    """
    calls: dict[_Group, list[Entry]] = {}
    for position, entry in enumerate(entries):
        group = (entry.pg_id, entry.process_group)
        parts = calls.get(group)
        if closes(entry):
            if parts and _same_call(parts[0], entry) and _without_events(parts):
                _close(calls.pop(group), entry)
            elif position == 0 and entry.record_id > 0 and entry.p2p_seq_id > 0:
                entry.is_p2p = entry.is_p2p or entry.profiling_name.endswith(_BATCH)
            entry.is_p2p = bool(entry.is_p2p)
        elif parts and entry.is_p2p == parts[0].is_p2p and _same_call(parts[0], entry):
            parts.append(entry)
        else:
            _leave_open(parts)
            calls[group] = [entry]
    for parts in calls.values():
        _leave_open(parts)


def closes(entry: Entry) -> bool:
    """Return True for an entry that closes a coalesced call, and has no tensors of its own.

    Other calls on several tensors, such as `allreduce_coalesced`, have one entry with all of them.
    """
    return not entry.input_sizes and not entry.output_sizes and entry.profiling_name.endswith(SUFFIX)


def _same_call(one: Entry, other: Entry) -> bool:
    """Return True if both have the numbers of one call. Formats before 2.0 have one kind of number."""
    known = one.seq_id >= 0 or (one.p2p_seq_id if one.is_p2p else one.collective_seq_id) >= 0
    return known and one.collective_seq_id == other.collective_seq_id and one.p2p_seq_id == other.p2p_seq_id


def _without_events(parts: Sequence[Entry]) -> bool:
    return not any(each.retired or each.state != "scheduled" for each in parts)


def _close(parts: Sequence[Entry], end: Entry) -> None:
    for part in parts:
        part.closed_by = end.record_id
        part.state, part.retired = end.state, end.retired
        part.time_discovered_completed_ns = end.time_discovered_completed_ns
    if parts[0].is_p2p:
        end.is_p2p = True
        end.input_sizes = tuple(size for part in parts for size in part.input_sizes or ())
        end.input_dtypes = tuple(name for part in parts for name in part.input_dtypes or ())


def _leave_open(parts: Sequence[Entry] | None) -> None:
    """Leave parts open: several entries with one number, or an operation that is never called alone."""
    if not parts or not _without_events(parts):
        return
    if len(parts) > 1 or parts[0].profiling_name.endswith(_NAMES_OF_PARTS):
        for part in parts:
            part.closed_by = UNCLOSED


_NAMES = {
    "all_gather": (
        *("ALLGATHER_coalesced", "_all_gather_base", "_allgather_base", "all_gather_into_tensor"),
        *("all_gather_into_tensor_coalesced", "all_gather_single", "all_gather_v", "allgather"),
        *("allgather_coalesced", "allgather_into_tensor_coalesced"),
    ),
    "reduce_scatter": (
        *("REDUCE_SCATTER_coalesced", "_reduce_scatter_base", "reduce_scatter_single"),
        *("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "reduce_scatter_v"),
    ),
    "broadcast": ("_broadcast_oop",),
    "reduce": ("_reduce_oop",),
    "barrier": ("all_reduce_barrier",),
    "all_to_all": ("all_to_all_single", "all_to_all_v_single", "all_to_allv", "alltoall"),
    "all_reduce": ("allreduce", "allreduce_coalesced"),
}
"""Our name -> other ones of the recorders of PyTorch and torchcomms."""
_OPERATIONS = {other: ours for ours, others in _NAMES.items() for other in others}
BATCH = "send_recv"
"""A batch of sends and receives."""
EQUAL_SIZES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
"""Operations in which every rank gives and takes as many elements as the others. In the rest, all_to_all
above all, sizes may differ between the ranks by design, and only the operation is compared."""
_ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "Double": 8, "Long": 8, "ComplexFloat": 8, "UInt64": 8, "ComplexDouble": 16,
        "Float": 4, "Int": 4, "UInt32": 4, "ComplexHalf": 4,
        "Half": 2, "BFloat16": 2, "Short": 2, "UInt16": 2,
        "Char": 1, "Byte": 1, "Bool": 1,
    }
)  # fmt: skip
"""By PyTorch's name of a scalar type; the types of 8-bit floating point begin with Float8."""
_LARGEST = 1 << 50
_LONGEST_NAME = 40


def backend_of(entry: Entry) -> str:
    """Return nccl, nccl2, gloo, ...; empty where the entry does not say."""
    return entry.profiling_name.partition(":")[0] if ":" in entry.profiling_name else ""


def operation_of(entry: Entry) -> str:
    """Return the operation, by the name that the dispatcher's hook gives it too."""
    name = entry.profiling_name.rpartition(":")[2].split(" ", 1)[0][:_LONGEST_NAME]
    return BATCH if entry.is_p2p and name == SUFFIX else standard_name(name)


def standard_name(name: str) -> str:
    """Return the operation that a recorder's name, without its backend, stands for."""
    return _OPERATIONS.get(name, name)


def input_bytes(entry: Entry, parts: Sequence[Entry] = ()) -> int | None:
    """Return the bytes of the rank's input; None where sizes or types are not known.

    parts: of the coalesced call that the entry closes (ProcessGroupNCCL.cpp). The inputs of
    `reduce_scatter` are those of its parts, one for each rank. `allgather` broadcasts the input of each rank,
    and which one is this rank's own is not recorded. So their mean is taken: the sum over all ranks is right.
    """
    if closes(entry):
        of_parts = [input_bytes(each) for each in parts]
        known = [each for each in of_parts if each is not None]
        if not parts or len(known) < len(parts):
            return None
        return sum(known) // (len(parts) if operation_of(entry) == "all_gather" else 1)
    sizes, types = entry.input_sizes, entry.input_dtypes
    if sizes is None or types is None or len(sizes) != len(types):
        return None
    total = 0
    for shape, name in zip(sizes, types, strict=True):
        item = 1 if name.startswith("Float8") else _ITEM_BYTES.get(name)
        count = elements([shape])
        if item is None or count is None:
            return None
        total += item * count
    return total


def signature(entry: Entry) -> int:
    """Return a hash of 32 bits, the same on all ranks that call the same collective.

    Shapes may differ where the number of elements does not, so elements are compared.
    """
    text = operation = operation_of(entry)
    if operation in EQUAL_SIZES:
        counts = compared_elements(operation, entry.input_sizes or (), entry.output_sizes or ())
        types = sorted({*(entry.input_dtypes or ()), *(entry.output_dtypes or ())})
        text = " ".join([operation, *map(str, counts), *types])
    return zlib.crc32(text.encode("utf-8", "replace"))


def compared_elements(
    operation: str, inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]
) -> tuple[int | None, int | None]:
    """Return elements of input and output, by which ranks compare their calls; None for what may differ.

    FlightRecorderHook.cpp, `onPre`, records the lists of a call as they are. Where those of an all_gather are
    uneven each rank gives another share, and all get the same; in a reduce_scatter it is the other way round.
    """
    given, taken = elements(inputs), elements(outputs)
    if operation == "all_gather" and outputs and any(each != outputs[0] for each in outputs):
        given = None
    if operation == "reduce_scatter" and inputs and any(each != inputs[0] for each in inputs):
        taken = None
    return given, taken


def elements(sizes: Sequence[Sequence[int]]) -> int | None:
    """Count the elements of all these tensors together; None for sizes that no tensor has."""
    total = 0
    for shape in sizes:
        if len(shape) > 64 or any(not 0 <= size < _LARGEST for size in shape):
            return None
        total += prod(shape)
    return total if total < _LARGEST else None
