"""The waits for works: when they block the thread, and operations whose end shows only there.

On gloo the work of a send, a receive or a reduce-scatter has no future, and no thread runs it: it ends inside
`work.wait()`, on the thread that waits. Of the other asynchronous ones the wait tells since when the thread
was blocked. So `Work.wait` is replaced while the hook is installed. PyTorch's own callers in Python all come
this way: `dist.send`, `dist.recv`, what `isend`, `irecv` and `batch_isend_irecv` return, the schedules of
`torch.distributed.pipelining`, FSDP. For those in C++ see `tensor_waits`.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from rankwatch.collectives.call import Call
from rankwatch.collectives.compiler import keep_from_compiler
from rankwatch.failures import Failures

_FOLLOW = "follow the wait for an operation"
_thread = threading.get_ident

MOST_FOLLOWED = 1024
"""Operations that may be waited for later; those beyond are let go at once."""


class _Followed(weakref.ref[Any]):
    """A work, its key, and the call it belongs to."""

    __slots__ = ("call", "key")
    key: int
    call: Call


class Waiting:
    """Follows works to the end of their `wait`.

    A work is known by its Python object. PyTorch makes a new one each time it hands a work to Python,
    unless one lives already: so the last one of each thread is held until the thread has it in its hands,
    that is until its next send or receive, or the end of its wait. The others live as long as the trainer
    keeps them.
    """

    def __init__(self, work_class: Any, failures: Failures) -> None:
        self._work_class = work_class
        self._failures = failures
        self._followed: dict[int, _Followed] = {}
        self._in_hand: dict[int, Any] = {}
        self._found = work_class.__dict__["wait"]
        self._ours = work_class.wait = self._replacement(work_class.wait)

    def follow(self, work: Any, call: Call) -> None:
        """Tell the call of the wait for its work, or that it is let go: by the trainer, or by `remove`."""
        self._in_hand[_thread()] = work
        followed = self._followed
        if len(followed) >= MOST_FOLLOWED:
            call.let_go()
            return
        known = _Followed(work, self._gone)
        known.key = key = id(work)
        known.call = call
        followed[key] = known

    def remove(self) -> None:
        """Put the `wait` that was found back, unless somebody else has replaced ours since."""
        if self._work_class.__dict__["wait"] is self._ours:
            self._work_class.wait = self._found
        for key in list(self._followed):
            if known := self._followed.pop(key, None):
                self._guard(known.call.let_go)
        self._in_hand.clear()

    def forget(self) -> None:
        """This is a forked child: what was followed is the parent's. What is in hand stays: to destroy
        a work may take a lock that a thread of the parent held."""
        self._followed.clear()

    def _replacement(self, original: Any) -> Any:
        followed = self._followed
        take = followed.pop

        # The names matter. For a work written in Python, pybind11 sees that a `wait` with this very
        # `self` calls it, and does not call back.
        def wait(self: Any, *arguments: Any, **named: Any) -> Any:
            known = take(id(self), None) if followed else None
            if known is None:
                return original(self, *arguments, **named)
            began = begun(known.call)
            failed = True
            try:
                result = original(self, *arguments, **named)
                failed = False
                return result
            finally:
                ended(self, known.call, began, failed)

        begun, ended = self._begun, self._ended
        replacement = keep_from_compiler(wait)
        replacement.__doc__ = original.__doc__
        return replacement

    def _begun(self, call: Call) -> float:
        moment = time.monotonic()
        try:
            call.wait_began(moment)
        except Exception as error:  # noqa: BLE001 - the trainer's wait must go on
            self._failures.note(_FOLLOW, error)
        return moment

    def _ended(self, work: Any, call: Call, began: float, failed: bool) -> None:
        try:
            call.wait_ended(began, time.monotonic(), failed=failed)
        except Exception as error:  # noqa: BLE001 - as above
            self._failures.note(_FOLLOW, error)
        thread = _thread()
        if self._in_hand.get(thread) is work:
            self._in_hand.pop(thread, None)

    def _gone(self, known: _Followed) -> None:
        if self._followed.pop(known.key, None) is not None:
            self._guard(known.call.let_go)

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - called by destructors
            self._failures.note(_FOLLOW, error)
