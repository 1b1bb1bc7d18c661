"""Operation and size of a flight recorder's entry, and the signature by which ranks compare their calls."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType

from rankwatch_agent.training.flight_recorder.coalesced import SUFFIX, closes
from rankwatch_agent.training.flight_recorder.parse import Entry

_OPERATIONS: Mapping[str, str] = MappingProxyType(
    {
        "ALLGATHER_coalesced": "all_gather",
        "REDUCE_SCATTER_coalesced": "reduce_scatter",
        "_all_gather_base": "all_gather",
        "_allgather_base": "all_gather",
        "_broadcast_oop": "broadcast",
        "_reduce_oop": "reduce",
        "_reduce_scatter_base": "reduce_scatter",
        "all_gather_into_tensor": "all_gather",
        "all_gather_into_tensor_coalesced": "all_gather",
        "all_gather_single": "all_gather",
        "all_gather_v": "all_gather",
        "all_reduce_barrier": "barrier",
        "all_to_all_single": "all_to_all",
        "all_to_all_v_single": "all_to_all",
        "all_to_allv": "all_to_all",
        "allgather": "all_gather",
        "allgather_coalesced": "all_gather",
        "allgather_into_tensor_coalesced": "all_gather",
        "allreduce": "all_reduce",
        "allreduce_coalesced": "all_reduce",
        "alltoall": "all_to_all",
        "reduce_scatter_single": "reduce_scatter",
        "reduce_scatter_tensor": "reduce_scatter",
        "reduce_scatter_tensor_coalesced": "reduce_scatter",
        "reduce_scatter_v": "reduce_scatter",
    }
)
"""Names of the recorders of PyTorch and torchcomms that differ from ours."""
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
    """nccl, nccl2, gloo, ...; empty where the entry does not say."""
    return entry.profiling_name.partition(":")[0] if ":" in entry.profiling_name else ""


def operation_of(entry: Entry) -> str:
    """The operation, by the name that the dispatcher's hook gives it too."""
    name = entry.profiling_name.rpartition(":")[2].split(" ", 1)[0][:_LONGEST_NAME]
    return BATCH if entry.is_p2p and name == SUFFIX else standard_name(name)


def standard_name(name: str) -> str:
    """The operation that a recorder's name, without its backend, stands for."""
    return _OPERATIONS.get(name, name)


def input_bytes(entry: Entry, parts: Sequence[Entry] = ()) -> int | None:
    """Bytes of the rank's input; None where sizes or types are not known.

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
    """A hash of 32 bits, the same on all ranks that call the same collective.

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
    """Elements of input and output, by which ranks compare their calls; None for what may differ.

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
    """Elements of all these tensors together; None for sizes that no tensor has."""
    total = 0
    for shape in sizes:
        if len(shape) > 64 or any(not 0 <= size < _LARGEST for size in shape):
            return None
        total += prod(shape)
    return total if total < _LARGEST else None
