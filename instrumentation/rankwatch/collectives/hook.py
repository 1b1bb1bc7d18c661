"""Every collective of the process, seen at PyTorch's dispatcher.

All collectives pass through the operators `c10d::*`, also those of DDP's C++ reducer, FSDP and DTensor. Each
operator gets a kernel at the dispatch key BackendSelect, which takes the time and calls the backend's kernel
below it, so nothing is re-implemented. That key is active for every device and in inference mode. It lies
below autograd, tracing and fake tensors, so whatever arrives there is about to be enqueued for real.

On CPU (gloo) the end of a collective is seen by the future of its work, on a backend thread, or by the wait
for its output, whichever comes first. The end of a send or receive is seen by the wait for it
(`host_waits`). On CUDA (NCCL) the tables of the group are written, and the waits of the compute stream are
timed by its own clock (`device_waits`).
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import time
from collections.abc import Collection
from contextlib import ExitStack
from functools import partial
from typing import Any

from rankwatch.blackbox.writer import Writer
from rankwatch.collectives.call import FUNCTIONAL, OPERATIONS, POINT_TO_POINT, Call, Operator
from rankwatch.collectives.device_waits import DeviceWaits
from rankwatch.collectives.groups import Groups
from rankwatch.collectives.host_waits import TensorWaits, WorkWaits
from rankwatch.compiling import uncompiled
from rankwatch.device.cuda import Gpu
from rankwatch.device.parts import WaitKey
from rankwatch.failures import Failures

_FOLLOW = "follow a collective"
_NOTHING = (None, None)


class CollectiveHook:
    """Records the collectives of this process while it is installed."""

    def __init__(self, writer: Writer, failures: Failures, gpu: Gpu | None) -> None:
        torch: Any = importlib.import_module("torch")
        c10d: Any = importlib.import_module("torch._C._distributed_c10d")

        self._writer = writer
        self._failures = failures
        self._group_of = c10d.ProcessGroup.unbox
        self._work_of = c10d.Work.unbox
        self._groups = Groups(writer)
        self._below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        self._futures: set[object] = set()
        with ExitStack() as undo:  # all hooks, or none after an error
            self._exit_wait = ExitWait(self._futures)
            undo.callback(self._exit_wait.cancel)
            self._device = self._device_waits(gpu, torch)
            if self._device is not None:
                undo.callback(self._device.remove)
            self._work_waits = WorkWaits(c10d.Work, failures, self._device)
            undo.callback(self._work_waits.remove)
            self._tensor_waits = TensorWaits(failures, self._device)
            undo.callback(self._tensor_waits.remove)
            self._library = torch.library.Library("c10d", "IMPL")
            undo.callback(self._library._destroy)
            for operator, name in OPERATIONS.items():
                packet = getattr(torch.ops.c10d, operator, None)
                if packet is not None:
                    self._install(packet.default, operator, name)
            self.remove = undo.pop_all().close
            """Removes the kernels."""

    def _device_waits(self, gpu: Gpu | None, torch: Any) -> DeviceWaits | None:
        if gpu is None:
            return None
        broadcast = self._writer.name_number("broadcast")
        return DeviceWaits(gpu, self._groups, self._failures, broadcast, torch, torch.distributed)

    @property
    def sees_waits(self) -> bool:
        """False if waits on the GPU are not all seen."""
        return self._device is None or self._device.complete

    def forget(self) -> None:
        """Stop waiting, in a forked child: no collective completes there."""
        self._futures.clear()
        self._work_waits.forget()
        self._tensor_waits.forget()
        self._groups.forget()

    def _install(self, operator: Any, short: str, name: str) -> None:
        seen = Operator(
            [argument.name for argument in operator._schema.arguments],
            self._writer.name_number(name),
            point_to_point=name in POINT_TO_POINT,
            functional=short in FUNCTIONAL,
        )
        below, redispatch, begin, follow = self._below, _redispatch(operator), self._begin, self._follow

        def kernel(keys: Any, *arguments: Any, **named: Any) -> Any:
            call, waits = begin(seen, arguments)
            try:
                result = redispatch(keys & below, *arguments, **named)
            except BaseException:
                if call is not None:
                    self._failures.attempt(_FOLLOW, call.refused)
                raise
            finally:
                if waits is not None:
                    waits.ends()
            if call is not None:
                follow(call, seen, arguments, result)
            return result

        self._library.impl(short, uncompiled(kernel), "BackendSelect", with_keyset=True)

    def _begin(
        self, operator: Operator, arguments: tuple[Any, ...]
    ) -> tuple[Call | None, DeviceWaits | None]:
        """Record that an operation is about to be enqueued. This comes first, because enqueuing it may block.

        Returns the call if its end can be followed, and whom to inform when it is enqueued.
        """
        enqueued = time.monotonic()
        try:
            tensor = operator.tensor(arguments)
            if tensor is None:
                return _NOTHING
            on_cpu = tensor.is_cpu
            if not on_cpu and tensor.is_meta:
                return _NOTHING  # no memory, as of fake tensors: nothing is transferred
            group = self._groups.of(self._group_of(arguments[operator.group]))
            call = Call(self._writer, group, operator, arguments, enqueued, on_cpu)
            if on_cpu:
                return call, None
            if (
                tensor.is_cuda
                and self._device is not None
                and self._device.enqueues(
                    tensor.device.index,
                    WaitKey(operator.number, group.number, operator.flags),
                    asynchronous=call.asynchronous,
                    message=operator.message(arguments),
                    output=arguments[0] if operator.functional else None,
                )
            ):
                return None, self._device
        except Exception as error:  # noqa: BLE001 - the trainer's collective must go on
            self._failures.note(_FOLLOW, error)
        return _NOTHING

    def _follow(self, call: Call, operator: Operator, arguments: tuple[Any, ...], result: Any) -> None:
        """Have the record written when the operation completes."""
        try:
            boxed = result[-1] if type(result) is tuple and result else result
            if boxed is None or type(boxed) is tuple:  # a monitored barrier has blocked and is complete
                call.complete(None)
                return
            work = self._work_of(boxed)
            future = None if operator.point_to_point else _future(work)
            if future is not None:
                self._futures.add(call)
                future.add_done_callback(partial(self._complete, call))
            else:
                call.wait_only()
            if call.asynchronous:
                if operator.functional:
                    self._tensor_waits.expect(call, arguments[0])
            elif future is not None:
                return  # it ends before the caller goes on, and its future is enough
            self._work_waits.follow(work, call)
        except Exception as error:  # noqa: BLE001 - the operation is in flight: training must go on
            self._failures.note(_FOLLOW, error)
            # Its end may never be seen, and it must not look hung for ever.
            self._failures.attempt(_FOLLOW, call.wait_only)

    def _complete(self, call: Call, future: Any) -> None:
        self._futures.discard(call)
        try:
            call.complete(future)
        except Exception as error:  # noqa: BLE001 - called from a thread of the backend
            self._failures.note(_FOLLOW, error)


def _future(work: Any) -> Any:
    try:
        return work.get_future()
    except RuntimeError:  # "getFuture not implemented": reduce-scatter on gloo
        return None


def _redispatch(operator: Any) -> Any:
    """Return what `operator.redispatch` calls, if this torch has it: that saves a Python frame."""
    handle = getattr(operator, "_handle", None)
    return getattr(handle, "redispatch_boxed", operator.redispatch)


_EXIT_SECONDS = 2.0


class ExitWait:
    """Waits, when the interpreter exits, for the futures that would call back into it.

    A collective that fails later would call into a dead interpreter, which aborts the process. So the exit
    waits for the collectives in flight, at most two seconds. The groups of those that remain are kept from
    being destroyed, because their destruction would fail the collectives.
    """

    def __init__(self, in_flight: Collection[object]) -> None:
        self._in_flight = in_flight
        atexit.register(self._wait)

    def cancel(self) -> None:
        """Cancel the wait, as no further collective is followed. Those in flight are still waited for."""
        if not self._in_flight:
            atexit.unregister(self._wait)

    def _wait(self) -> None:
        deadline = time.monotonic() + _EXIT_SECONDS
        while self._in_flight and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._in_flight:
            c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
            for group in list(c10d._world.pg_map):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
