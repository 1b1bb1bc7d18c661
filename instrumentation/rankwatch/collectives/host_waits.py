"""Waits on the host: when they block the thread, and the end of operations that shows only there.

Works: on gloo the work of a send, a receive or a reduce-scatter has no future, and no thread runs it. It ends
inside `work.wait()`, on the waiting thread. For the other asynchronous operations the wait shows since when
the thread was blocked. So `Work.wait` is replaced while the hook is installed. All of PyTorch's callers in
Python use it: `dist.send`, `dist.recv`, what `isend`, `irecv` and `batch_isend_irecv` return, the schedules
of `torch.distributed.pipelining`, and FSDP.

Tensors: DTensor, and with it tensor and sequence parallelism, calls the operators `_c10d_functional::*`. They
enqueue a collective of `c10d`, and `_c10d_functional::wait_tensor` waits in C++ for the work that belongs to
the storage of a tensor, in the variants with autograd, too. A kernel at the key BackendSelect of that
operator informs the call of the beginning and the end of the wait.
"""

from __future__ import annotations

import importlib
import threading
import time
import weakref
from functools import partial
from typing import Any

from rankwatch.collectives.call import Call
from rankwatch.collectives.device_waits import DeviceWaits
from rankwatch.compiling import uncompiled
from rankwatch.failures import Failures

_FOLLOW_WORK = "follow the wait for an operation"
_FOLLOW_TENSOR = "follow the wait for a tensor"
_thread = threading.get_ident
MOST_FOLLOWED = 1024
"""Most operations that are followed to their wait; further ones count as abandoned at once."""
MOST_AWAITED = 1024
"""Most storages whose waits are seen."""


class _Followed(weakref.ref[Any]):
    """A work, its key, and the call it belongs to."""

    __slots__ = ("call", "key")
    key: int
    call: Call


class WorkWaits:
    """Follows works to the end of their `wait`.

    A work is identified by its Python object. PyTorch creates a new object each time it passes a work to
    Python, unless one is alive. So the last object of each thread is kept alive until the thread holds it
    itself: until its next send or receive, or the end of its wait. The trainer keeps the others alive.
    """

    def __init__(self, work_class: Any, failures: Failures, device: DeviceWaits | None = None) -> None:
        self._work_class = work_class
        self._device = device
        self._failures = failures
        self._followed: dict[int, _Followed] = {}
        self._in_hand: dict[int, Any] = {}
        self._found = work_class.__dict__["wait"]
        self._ours = work_class.wait = self._replacement(work_class.wait)

    def follow(self, work: Any, call: Call) -> None:
        """Have the call informed of the wait for its work, or that the trainer or `remove` abandons it."""
        self._in_hand[_thread()] = work
        followed = self._followed
        if len(followed) >= MOST_FOLLOWED:
            call.abandoned()
            return
        known = _Followed(work, self._gone)
        known.key = key = id(work)
        known.call = call
        followed[key] = known

    def remove(self) -> None:
        """Restore the original `wait`, unless somebody else has replaced ours."""
        if self._work_class.__dict__["wait"] is self._ours:
            self._work_class.wait = self._found
        for key in list(self._followed):
            if known := self._followed.pop(key, None):
                self._failures.attempt(_FOLLOW_WORK, known.call.abandoned)
        self._in_hand.clear()

    def forget(self) -> None:
        """Forget the parent's works in a forked child. The objects in hand stay alive: destroying a work may
        take a lock that a thread of the parent held."""
        self._followed.clear()

    def _replacement(self, original: Any) -> Any:
        followed = self._followed
        take = followed.pop

        # The names matter: they let pybind11 see that the `wait` of a work written in Python calls itself
        # with this very `self`, so it does not call back.
        def wait(self: Any, *arguments: Any, **named: Any) -> Any:
            known = take(id(self), None) if followed else None
            waits = device if device is not None and device.begins_work(self) else None
            if known is None and waits is None:
                return original(self, *arguments, **named)
            began = 0.0 if known is None else begun(known.call)
            failed = True
            try:
                result = original(self, *arguments, **named)
                failed = False
                return result
            finally:
                if waits is not None:
                    waits.ends()
                if known is not None:
                    ended(self, known.call, began, failed)

        begun, ended, device = self._begun, self._ended, self._device
        replacement = uncompiled(wait)
        replacement.__doc__ = original.__doc__
        return replacement

    def _begun(self, call: Call) -> float:
        moment = time.monotonic()
        try:
            call.wait_began(moment)
        except Exception as error:  # noqa: BLE001 - the trainer's wait must go on
            self._failures.note(_FOLLOW_WORK, error)
        return moment

    def _ended(self, work: Any, call: Call, began: float, failed: bool) -> None:
        try:
            call.wait_ended(began, time.monotonic(), failed=failed)
        except Exception as error:  # noqa: BLE001 - as above
            self._failures.note(_FOLLOW_WORK, error)
        thread = _thread()
        if self._in_hand.get(thread) is work:
            self._in_hand.pop(thread, None)

    def _gone(self, known: _Followed) -> None:
        if self._followed.pop(known.key, None) is not None:
            self._failures.attempt(_FOLLOW_WORK, known.call.abandoned)


class TensorWaits:
    """Informs calls of the waits for their outputs.

    A call is identified by the address of its output's storage. The address belongs to the call while it is
    in flight, because the backend holds the tensors. A call with a future is dropped when the future ends. A
    call whose end only a wait shows stays until its output is freed. The addresses of calls with a future are
    looked up only when a thread waits for a tensor, which never happens under DDP.
    """

    def __init__(self, failures: Failures, device: DeviceWaits | None = None) -> None:
        torch: Any = importlib.import_module("torch")
        self._failures = failures
        self._device = device
        self._awaited: dict[int, Call] = {}
        self._unresolved: dict[Call, Any] = {}
        self._below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        self._library = torch.library.Library("_c10d_functional", "IMPL")
        packet = getattr(torch.ops._c10d_functional, "wait_tensor", None)
        if packet is not None:
            self._install(packet.default)

    def expect(self, call: Call, outputs: Any) -> None:
        """Expect a thread to wait for these tensors, one or a list, which the call writes to."""
        if len(self._awaited) + len(self._unresolved) >= MOST_AWAITED:
            return
        if not call.lives_by_output:
            call.expect_when_asked(self._unresolved, outputs)
            return
        if self._unresolved:  # in the order of enqueuing: of two calls with one storage the later counts
            self._resolve()
        if self._enter(call, outputs):
            first = outputs[0] if isinstance(outputs, list) else outputs
            call.output = weakref.ref(first, partial(self._gone, call))

    def remove(self) -> None:
        """Remove the kernel. The end of outputs that are still awaited will not be seen."""
        self._library._destroy()
        self._unresolved.clear()
        for call in list(self._awaited.values()):
            self._gone(call, None)

    def forget(self) -> None:
        """Forget the parent's calls in a forked child."""
        self._awaited.clear()
        self._unresolved.clear()

    def _resolve(self) -> None:
        """Enter the calls under the addresses of their outputs, in the order of enqueuing."""
        for call in list(self._unresolved):
            outputs = self._unresolved.pop(call, None)
            if outputs is not None:  # otherwise it ended meanwhile
                self._enter(call, outputs)

    def _enter(self, call: Call, outputs: Any) -> bool:
        tensors = outputs if isinstance(outputs, list) else (outputs,)
        storages = [each.untyped_storage()._cdata for each in tensors if not each.is_sparse]
        call.expect(self._awaited, storages)
        return bool(storages)

    def _install(self, operator: Any) -> None:
        awaited, unresolved, begun, ended = self._awaited, self._unresolved, self._begun, self._ended
        below, redispatch, device = self._below, operator.redispatch, self._device

        def kernel(keys: Any, *arguments: Any, **named: Any) -> Any:
            if device is not None and arguments[0].is_cuda:
                if not device.begins_for(arguments[0]):
                    return redispatch(keys & below, *arguments, **named)
                try:
                    return redispatch(keys & below, *arguments, **named)
                finally:
                    device.ends()
            wait = begun(arguments) if awaited or unresolved else None
            if wait is None:
                return redispatch(keys & below, *arguments, **named)
            failed = True
            try:
                result = redispatch(keys & below, *arguments, **named)
                failed = False
                return result
            finally:
                ended(*wait, failed)

        self._library.impl("wait_tensor", uncompiled(kernel), "BackendSelect", with_keyset=True)

    def _begun(self, arguments: tuple[Any, ...]) -> tuple[Call, float] | None:
        try:
            if self._unresolved:
                self._resolve()
            call = self._awaited.get(arguments[0].untyped_storage()._cdata)
            if call is None:
                return None
            began = time.monotonic()
            call.wait_began(began)
        except Exception as error:  # noqa: BLE001 - the trainer's wait must go on
            self._failures.note(_FOLLOW_TENSOR, error)
            return None
        return call, began

    def _ended(self, call: Call, began: float, failed: bool) -> None:
        try:
            call.wait_ended(began, time.monotonic(), failed=failed)
        except Exception as error:  # noqa: BLE001 - as above
            self._failures.note(_FOLLOW_TENSOR, error)

    def _gone(self, call: Call, _: object) -> None:
        try:
            call.outputs_gone()
        except Exception as error:  # noqa: BLE001 - called from destructors
            self._failures.note(_FOLLOW_TENSOR, error)
