"""The operators `c10d::*`: the collective each runs, and the places of its arguments."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind

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
    "gather_into_tensor_": "gather",
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
"""Operators that functional collectives run. `wait_tensor` waits for their outputs, which come first, one
tensor or a list."""

_ASYNCHRONOUS = ("async_op", "asyncOp")
"""The second is the name before torch 2.8, where few operators have it; `Work.wait` shows it for the
others."""
_PEERS = {"dst": False, "src": True}
"""The arguments of a send and of a receive that hold the peer, and whether it is a receive."""
_INPUTS = ("input_tensors", "inputs", "input_tensor", "input", "input_list", "tensors", "tensor")


class Operator:
    """The places of an operator's arguments."""

    __slots__ = (
        "_inputs",
        "_peer",
        "asynchronous",
        "flags",
        "functional",
        "group",
        "number",
        "point_to_point",
        "tag",
    )

    def __init__(
        self, arguments: Sequence[str], number: int, *, point_to_point: bool, functional: bool = False
    ) -> None:
        self.number = number
        """Number of its name in the black box."""
        self.tag = layout.tag(RecordKind.COLLECTIVE, number)
        """Tag of its records."""
        self.flags = layout.POINT_TO_POINT | layout.BLOCKING if point_to_point else 0
        """Flags that all its records have."""
        self.point_to_point = point_to_point
        self.functional = functional
        """True if functional collectives run it; its first argument is then its output."""
        self.group = arguments.index("process_group")
        """Place of the process group; all tensors come before it."""
        peer = next((each for each in _PEERS if point_to_point and each in arguments), None)
        self._peer = None if peer is None else (arguments.index(peer), _PEERS[peer])
        self._inputs = next(arguments.index(each) for each in _INPUTS if each in arguments)
        named = next((each for each in _ASYNCHRONOUS if each in arguments), None)
        self.asynchronous = sys.maxsize if named is None else arguments.index(named)
        """Place of the flag that lets the caller go on. A kernel does not receive trailing arguments that
        have their default value, which is True here."""

    def message(self, arguments: Sequence[Any]) -> int:
        """A send or receive as in the record of a wait; 0 if it is neither, or receives from anybody."""
        if self._peer is None:
            return 0
        peer, received = self._peer
        return layout.message(arguments[peer], received=received)

    def input_bytes(self, arguments: Sequence[Any]) -> int:
        """Bytes of the rank's input."""
        tensors = arguments[self._inputs]
        if type(tensors) is list:
            if len(tensors) != 1:
                return _bytes(tensors)
            tensors = tensors[0]
        try:
            return tensors.nbytes  # type: ignore[no-any-return]
        except (AttributeError, RuntimeError):  # a list in a list, or sparse
            return _bytes(tensors)

    def tensor(self, arguments: Sequence[Any]) -> Any:
        """A tensor of the call, which has the device; None if there is none."""
        first = arguments[0]
        if type(first) is list and first and type(first[0]) is not list:
            return first[0]
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
    if tensors.is_sparse:  # has no `nbytes`; its parts are transferred
        return _bytes([tensors._indices(), tensors._values()])
    return int(tensors.nbytes)
