"""What two ranks must have in common to meet in a collective."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from rankwatch_diagnosis.hang.snapshot import Signature

EQUAL_SIZES = frozenset(
    {
        "_all_gather_base",
        "_allgather_base",
        "_broadcast_oop",
        "_reduce_oop",
        "_reduce_scatter_base",
        "all_gather",
        "all_gather_into_tensor",
        "all_reduce",
        "broadcast",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
    }
)
"""Operations in which every member gives and takes as many elements of the same type as the others.

Others, all_to_all above all, may differ between the members by design; of these only the name is compared."""
ROOTED = frozenset({"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"})
"""Operations that a member may leave before all the others have come."""

Shapes = tuple[tuple[int, ...], ...]


class Call(NamedTuple):
    """A collective as one rank called it."""

    name: str
    """Without backend."""
    inputs: Shapes
    outputs: Shapes
    input_types: Sequence[str]
    output_types: Sequence[str]


def signature_of(call: Call) -> Signature:
    """The signature; raises ValueError or TypeError where sizes are no numbers or types no text."""
    inputs, outputs = (_sizes(shapes) for shapes in (call.inputs, call.outputs))
    types = sorted({str(each)[:40] for each in (*call.input_types[:64], *call.output_types[:64])})
    text = " ".join([call.name, *filter(None, [inputs, f"-> {outputs}" if outputs else "", *types])])
    match = call.name
    if call.name in EQUAL_SIZES and call.inputs:
        # Shapes may differ where the number of elements does not.
        counts = [sum(prod(shape) for shape in shapes) for shapes in (call.inputs, call.outputs)]
        match = " ".join([call.name, *map(str, counts), *types])
    return Signature(call.name, match, text)


def _sizes(shapes: Shapes) -> str:
    for shape in shapes:
        if not all(isinstance(size, int) for size in shape) or len(shape) > 64:
            raise ValueError("sizes are no numbers")
    shown = ",".join("x".join(str(size) for size in shape) or "scalar" for shape in shapes[:4])
    return shown + (f",... {len(shapes)} tensors" if len(shapes) > 4 else "")
