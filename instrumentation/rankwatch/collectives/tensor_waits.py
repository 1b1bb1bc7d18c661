"""Functional collectives: the thread waits for their output, not for their work.

DTensor, and with it tensor and sequence parallelism, calls the operators `_c10d_functional::*`. They enqueue
a collective of `c10d`, and `_c10d_functional::wait_tensor` waits in C++ for the work that belongs to the
storage of a tensor. The variants with autograd do the same. A kernel at the key BackendSelect of that
operator informs the call of the beginning and the end of the wait.
"""

from __future__ import annotations

import importlib
import time
import weakref
from functools import partial
from typing import Any

from rankwatch.collectives.call import Call
from rankwatch.collectives.device_waits import DeviceWaits
from rankwatch.compiling import uncompiled
from rankwatch.failures import Failures

MOST_AWAITED = 1024
"""Most storages whose waits are seen."""
_FOLLOW = "follow the wait for a tensor"


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
        """A thread may wait for these tensors, one or a list, which the call writes to."""
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
        except Exception as error:  # noqa: BLE001 - called from destructors
            self._failures.note(_FOLLOW, error)
