"""Functional collectives: the thread waits for their output, not for their work.

DTensor, and with it tensor and sequence parallelism, calls the operators `_c10d_functional::*`. They enqueue
a collective of `c10d`, and `_c10d_functional::wait_tensor` waits, in C++, for the work that belongs to the
storage of a tensor. The variants with autograd come this way too. A kernel at the key BackendSelect of that
operator, as at those of the collectives, tells the call when the wait began and when it was over.
"""

from __future__ import annotations

import importlib
import time
import weakref
from functools import partial
from typing import Any

from rankwatch.collectives.call import Call
from rankwatch.collectives.compiler import keep_from_compiler
from rankwatch.failures import Failures

MOST_AWAITED = 1024
"""Storages that may be waited for; of those beyond no wait is seen."""
_FOLLOW = "follow the wait for a tensor"


class TensorWaits:
    """Tells calls of the waits for their outputs.

    A call is known by the address of its output's storage. That address belongs to it as long as it is
    under way, because the backend holds the tensors; a call whose future tells its end leaves then. One
    whose end only a wait tells stays until its output is freed. The addresses of the former are asked for
    when a thread waits for a tensor: under DDP none ever does.
    """

    def __init__(self, failures: Failures) -> None:
        torch: Any = importlib.import_module("torch")
        self._failures = failures
        self._awaited: dict[int, Call] = {}
        self._unresolved: dict[Call, Any] = {}
        self._below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        self._library = torch.library.Library("_c10d_functional", "IMPL")
        packet = getattr(torch.ops._c10d_functional, "wait_tensor", None)
        if packet is not None:
            self._install(packet.default)

    def expect(self, call: Call, outputs: Any) -> None:
        """A thread may wait for the tensors, one or a list, which the call writes to."""
        if len(self._awaited) + len(self._unresolved) >= MOST_AWAITED:
            return
        if not call.lives_by_output:
            call.expect_when_asked(self._unresolved, outputs)
            return
        if self._unresolved:  # first what was enqueued first: of two with one storage the later counts
            self._resolve()
        if self._enter(call, outputs):
            first = outputs[0] if isinstance(outputs, list) else outputs
            call.output = weakref.ref(first, partial(self._gone, call))

    def remove(self) -> None:
        """Take the kernel out again; what is still awaited will not be seen to end."""
        self._library._destroy()
        self._unresolved.clear()
        for call in list(self._awaited.values()):
            self._gone(call, None)

    def forget(self) -> None:
        """This is a forked child: what was awaited is the parent's."""
        self._awaited.clear()
        self._unresolved.clear()

    def _resolve(self) -> None:
        """Enter what may be waited for under the addresses of its outputs, in the order of the enqueues."""
        for call in list(self._unresolved):
            outputs = self._unresolved.pop(call, None)
            if outputs is not None:  # else it has ended meanwhile
                self._enter(call, outputs)

    def _enter(self, call: Call, outputs: Any) -> bool:
        tensors = outputs if isinstance(outputs, list) else (outputs,)
        storages = [each.untyped_storage()._cdata for each in tensors if not each.is_sparse]
        call.expect(self._awaited, storages)
        return bool(storages)

    def _install(self, operator: Any) -> None:
        awaited, unresolved, begun, ended = self._awaited, self._unresolved, self._begun, self._ended
        below, redispatch = self._below, operator.redispatch

        def kernel(keys: Any, *arguments: Any, **named: Any) -> Any:
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

        self._library.impl("wait_tensor", keep_from_compiler(kernel), "BackendSelect", with_keyset=True)

    def _begun(self, arguments: tuple[Any, ...]) -> tuple[Call, float] | None:
        try:
            if self._unresolved:
                self._resolve()
            call = self._awaited.get(arguments[0].untyped_storage()._cdata)
            if call is None:
                return None
            began = time.monotonic()
            call.wait_began(began)
        except Exception as error:  # noqa: BLE001 - nothing of ours may keep the trainer from its wait
            self._failures.note(_FOLLOW, error)
            return None
        return call, began

    def _ended(self, call: Call, began: float, failed: bool) -> None:
        try:
            call.wait_ended(began, time.monotonic(), failed=failed)
        except Exception as error:  # noqa: BLE001 - as above
            self._failures.note(_FOLLOW, error)

    def _gone(self, call: Call, _: object) -> None:
        try:
            call.outputs_gone()
        except Exception as error:  # noqa: BLE001 - called by destructors
            self._failures.note(_FOLLOW, error)
