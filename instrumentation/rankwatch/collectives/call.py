"""One operation, from just before it is enqueued to its record in the black box.

An `Operator` is one of `c10d::*`: the collective that it runs, and the places of its arguments.
A `Call` is one call of it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.collectives.groups import Group

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
        """Return a send or receive as in a wait's record; 0 if it is neither, or receives from anybody."""
        if self._peer is None:
            return 0
        peer, received = self._peer
        return layout.message(arguments[peer], received=received)

    def input_bytes(self, arguments: Sequence[Any]) -> int:
        """Return the bytes of the rank's input."""
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
        """Return a tensor of the call, which has the device; None if there is none."""
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


_clock = time.monotonic
_NOWHERE: dict[int, Any] = {}


class Call:
    """A collective, send or receive. Creating it updates the tables of its group in the black box.

    followed: True if the end will be seen. A send or receive is in flight only once a thread waits for it.

    Whoever sees the end first, the future or a wait, writes the record. There is only one.
    """

    __slots__ = (
        "_awaited",
        "_blocking",
        "_count",
        "_dropped",
        "_group",
        "_operator",
        "_seen_by_wait",
        "_size",
        "_storages",
        "_unrecorded",
        "_unresolved",
        "_waited",
        "_writer",
        "asynchronous",
        "enqueued",
        "output",
    )

    def __init__(
        self,
        writer: Writer,
        group: Group,
        operator: Operator,
        arguments: tuple[Any, ...],
        enqueued: float,
        followed: bool = False,
    ) -> None:
        self._writer = writer
        self._group = group
        self._operator = operator
        self._size = operator.input_bytes(arguments)
        self._waited = 0.0
        self._seen_by_wait = self._dropped = False
        self._awaited: dict[int, Call] = _NOWHERE
        self._unresolved: dict[Call, Any] | None = None
        self._storages: Sequence[int] = ()
        self._unrecorded = [True]  # whoever pops the item writes the record: an atomic step instead of a lock
        self.output: Any = None
        """Weak reference to the output, held while its end matters."""
        self.enqueued = enqueued
        if operator.point_to_point:
            self._blocking = self.asynchronous = True
            self._count = group.point_to_point(operator.number)
            return
        place = operator.asynchronous
        self.asynchronous = asynchronous = len(arguments) <= place or bool(arguments[place])
        """True if the caller goes on and may wait for it later."""
        self._blocking = not asynchronous
        if followed:
            self._count = group.collective_in_flight(self, operator.number, enqueued)
        else:
            self._count = group.collective(operator.number)

    @property
    def lives_by_output(self) -> bool:
        """True if only the end of its output shows that nobody will wait for it."""
        return self._seen_by_wait and not self._operator.point_to_point

    def refused(self) -> None:
        """Drop the call, whose arguments were refused: it was not enqueued and gets no record."""
        self._group.complete(self)
        if not self._operator.point_to_point:
            self._group.refused(self._count)

    def complete(self, future: Any) -> None:
        """Complete the call. `future`, if there is one, holds an error that it ended with."""
        ended = _clock()
        try:
            self._record(self.enqueued, ended, future is not None and _failed(future))
        finally:  # even on an error: what is complete must not stay in the tables as in flight
            self._group.complete(self)

    def wait_only(self) -> None:
        """Leave it to a wait, if there is one, to show its end. Until then it does not count as in flight."""
        self._seen_by_wait = True
        self._group.complete(self)

    def expect(self, awaited: dict[int, Call], storages: Sequence[int]) -> None:
        """Enter it in `awaited` under these storages until it has its record."""
        self._awaited, self._storages = awaited, storages
        for each in storages:
            before = awaited.get(each)
            awaited[each] = self
            if before is not None and before is not self:
                before.outputs_gone()
        if not self._unrecorded:  # it ended meanwhile, perhaps before all storages were entered
            self._storages = storages
            self._forget_outputs()

    def expect_when_asked(self, unresolved: dict[Call, Any], outputs: Any) -> None:
        """Enter it in `unresolved` with its outputs, until their storages are needed or it has its record."""
        self._unresolved = unresolved
        unresolved[self] = outputs
        if not self._unrecorded:  # it ended meanwhile
            unresolved.pop(self, None)

    def wait_began(self, moment: float) -> None:
        """Begin a thread's wait for it. The first of several waits counts."""
        if not self._waited and not self._blocking:
            self._waited = moment
        if self._seen_by_wait:
            self._group.in_flight(self, moment if self._operator.point_to_point else self.enqueued)

    def wait_ended(self, began: float, ended: float, *, failed: bool) -> None:
        """End the wait. A send or receive counts from the beginning of the wait: before it, the thread did
        work of its own."""
        if failed and not self._seen_by_wait:
            return  # perhaps only the wait timed out; the future shows how the operation ends
        try:
            self._record(began if self._operator.point_to_point else self.enqueued, ended, failed)
        finally:
            self._group.complete(self)

    def abandoned(self) -> None:
        """Note that nobody will wait for its work. Its end stays unknown, unless a thread waits for its
        output or there is a future."""
        if not self._seen_by_wait:
            return
        if self._storages and self.lives_by_output:
            self._dropped = True
        else:
            self._record(self.enqueued, self.enqueued, failed=False, flags=layout.UNTIMED)

    def outputs_gone(self) -> None:
        """Note that no thread can wait for its outputs any more."""
        self._forget_outputs()
        if self._dropped:
            self._record(self.enqueued, self.enqueued, failed=False, flags=layout.UNTIMED)

    def _forget_outputs(self) -> None:
        awaited = self._awaited
        for each in self._storages:
            if awaited.get(each) is self:
                awaited.pop(each, None)
        self._storages = ()
        self.output = None

    def _record(self, start: float, end: float, failed: bool, *, flags: int = 0) -> None:
        try:
            self._unrecorded.pop()
        except IndexError:  # it has its record already
            return
        if self._unresolved is not None:
            self._unresolved.pop(self, None)
        if self._storages:
            self._forget_outputs()
        operator = self._operator
        flags |= operator.flags
        if self._blocking:
            flags |= layout.BLOCKING
        if failed:
            flags |= layout.FAILED
        self._writer.collective(
            operator.tag, start, end, self._size, self._count, self._group.number, flags, self._waited
        )


def _failed(future: Any) -> bool:
    try:
        future.value()
    except RuntimeError:
        return True
    return False
