"""The operators `c10d::*`: what each is called, and where it keeps what we want of its arguments."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

OPERATIONS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "broadcast_": "broadcast",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
    "barrier": "barrier",
    "monitored_barrier_": "barrier",
}
"""Operator under `c10d::` -> name of the collective."""

POINT_TO_POINT = frozenset(("send", "recv"))

FUNCTIONAL = frozenset(
    (
        "allreduce_",
        "allreduce_coalesced_",
        "broadcast_",
        "_allgather_base_",
        "allgather_into_tensor_coalesced_",
        "_reduce_scatter_base_",
        "reduce_scatter_tensor_coalesced_",
        "alltoall_base_",
        "send",
        "recv_",
    )
)
"""Operators that functional collectives run, for whose outputs `wait_tensor` waits. The outputs come first,
one tensor or a list."""

_INPUTS = ("input_tensors", "inputs", "input_tensor", "input", "input_list", "tensors", "tensor")


class Operator:
    """Where an operator keeps what we want of its arguments."""

    __slots__ = ("_asynchronous", "_inputs", "functional", "group", "number", "point_to_point")

    def __init__(
        self, arguments: Sequence[str], number: int, *, point_to_point: bool, functional: bool = False
    ) -> None:
        self.number = number
        """Number of its name in the black box."""
        self.point_to_point = point_to_point
        self.functional = functional
        """Whether functional collectives run it."""
        self.group = arguments.index("process_group")
        """Place of the process group; all tensors come before it."""
        self._inputs = next(arguments.index(each) for each in _INPUTS if each in arguments)
        self._asynchronous = arguments.index("async_op") if "async_op" in arguments else sys.maxsize

    def blocks(self, arguments: Sequence[Any]) -> bool:
        """Whether the caller blocks until it is complete. A last argument that has its default (here: to
        be asynchronous) is not among those that a kernel is given."""
        return len(arguments) > self._asynchronous and not arguments[self._asynchronous]

    def input_bytes(self, arguments: Sequence[Any]) -> int:
        """Bytes of the rank's input."""
        return _bytes(arguments[self._inputs])

    def outputs(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """The tensors it writes to, where functional collectives run it."""
        first = arguments[0]
        return first if isinstance(first, list) else (first,)

    def tensor(self, arguments: Sequence[Any]) -> Any:
        """A tensor of the call, which tells the device; None where it has none."""
        for each in arguments[: self.group]:
            while isinstance(each, list):
                if not each:
                    break
                each = each[0]
            else:
                return each
        return None


def _bytes(tensors: Any) -> int:
    if isinstance(tensors, list):
        return sum(map(_bytes, tensors)) if len(tensors) != 1 else _bytes(tensors[0])
    if tensors.is_sparse:  # has no `nbytes`; what travels is its parts
        return _bytes([tensors._indices(), tensors._values()])
    return int(tensors.nbytes)
