"""One operation on its way: from before it is enqueued to its record in the black box."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rankwatch.blackbox import layout
from rankwatch.blackbox.writer import Writer
from rankwatch.collectives.groups import Group
from rankwatch.collectives.operators import Operator

_clock = time.monotonic
_NOWHERE: dict[int, Any] = {}


class Call:
    """A collective, send or receive; says in the tables of its group that it is about to be enqueued.

    followed: whether its end will be told; a send or receive is under way only once a thread waits for it.

    It is recorded once: by the first that sees its end, which is its future or a wait for it.
    """

    __slots__ = (
        "_awaited",
        "_blocking",
        "_count",
        "_dropped",
        "_group",
        "_operator",
        "_size",
        "_storages",
        "_unrecorded",
        "_unresolved",
        "_wait_tells",
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
        self._wait_tells = self._dropped = False
        self._awaited: dict[int, Call] = _NOWHERE
        self._unresolved: dict[Call, Any] | None = None
        self._storages: Sequence[int] = ()
        self._unrecorded = [True]  # who takes it out writes the record: one atomic step, so no lock
        self.output: Any = None
        """Held for whoever watches over the operation's output."""
        self.enqueued = enqueued
        if operator.point_to_point:
            self._blocking = self.asynchronous = True
            self._count = group.point_to_point(operator.number)
            return
        place = operator.asynchronous
        self.asynchronous = asynchronous = len(arguments) <= place or bool(arguments[place])
        """Whether the caller goes on, and may wait for it later."""
        self._blocking = not asynchronous
        if followed:
            self._count = group.collective_under_way(self, operator.number, enqueued)
        else:
            self._count = group.collective(operator.number)

    @property
    def lives_by_output(self) -> bool:
        """Whether only the end of its output tells that nobody will wait for it."""
        return self._wait_tells and not self._operator.point_to_point

    def refused(self) -> None:
        """It was not enqueued, and has no record: its arguments were refused."""
        self._group.complete(self)
        if not self._operator.point_to_point:
            self._group.refused(self._count)

    def complete(self, future: Any) -> None:
        """It is complete; `future`, where there is one, knows how it went."""
        ended = _clock()
        try:
            self._record(self.enqueued, ended, future is not None and _failed(future))
        finally:  # whatever fails: what is complete must not stand in the tables as under way
            self._group.complete(self)

    def wait_only(self) -> None:
        """Only a wait for it, if there is one, will tell when it ends: until then it counts for nothing."""
        self._wait_tells = True
        self._group.complete(self)

    def expect(self, awaited: dict[int, Call], storages: Sequence[int]) -> None:
        """It stands in `awaited` under these storages until it has its record."""
        self._awaited, self._storages = awaited, storages
        for each in storages:
            before = awaited.get(each)
            awaited[each] = self
            if before is not None and before is not self:
                before.outputs_gone()
        if not self._unrecorded:  # it has ended meanwhile, perhaps before all of them were entered
            self._storages = storages
            self._expect_nothing()

    def expect_when_asked(self, unresolved: dict[Call, Any], outputs: Any) -> None:
        """It stands in `unresolved` with its outputs until somebody asks for their storages, or it has its
        record."""
        self._unresolved = unresolved
        unresolved[self] = outputs
        if not self._unrecorded:  # it has ended meanwhile
            unresolved.pop(self, None)

    def wait_began(self, moment: float) -> None:
        """A thread waits for it; of several waits the first counts."""
        if not self._waited and not self._blocking:
            self._waited = moment
        if self._wait_tells:
            self._group.under_way(self, moment if self._operator.point_to_point else self.enqueued)

    def wait_ended(self, began: float, ended: float, *, failed: bool) -> None:
        """The wait is over. A send or receive counts from where the thread began to wait for it: what the
        thread did before that is its own work."""
        if failed and not self._wait_tells:
            return  # the wait may have lost patience only: how it ends the future tells
        try:
            self._record(began if self._operator.point_to_point else self.enqueued, ended, failed)
        finally:
            self._group.complete(self)

    def let_go(self) -> None:
        """Nobody waits for its work; unless a thread waits for its output, or there is a future, its end
        will not be known."""
        if not self._wait_tells:
            return
        if self._storages and self.lives_by_output:
            self._dropped = True
        else:
            self._record(self.enqueued, self.enqueued, failed=False, flags=layout.UNTIMED)

    def outputs_gone(self) -> None:
        """No thread can wait for its outputs any more."""
        self._expect_nothing()
        if self._dropped:
            self._record(self.enqueued, self.enqueued, failed=False, flags=layout.UNTIMED)

    def _expect_nothing(self) -> None:
        awaited = self._awaited
        for each in self._storages:
            if awaited.get(each) is self:
                awaited.pop(each, None)
        self._storages = ()
        self.output = None

    def _record(self, start: float, end: float, failed: bool, *, flags: int = 0) -> None:
        try:
            self._unrecorded.pop()
        except IndexError:  # it has its record
            return
        if self._unresolved is not None:
            self._unresolved.pop(self, None)
        if self._storages:
            self._expect_nothing()
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
