"""Every collective of the process, seen at PyTorch's dispatcher.

All collectives, also those of DDP's C++ reducer and of DTensor, pass through the operators `c10d::*`.
A kernel at the autograd key of each one notes the time and hands on to the kernel below it, so that
nothing is re-implemented. On CPU (gloo) the completion comes from the future of the work, on a
backend thread; on CUDA (NCCL) only the arrival is noted, on the GPU's clock: durations there come
from the flight recorder.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import itertools
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.failures import Failures

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

_INPUTS = ("input_tensors", "inputs", "input_tensor", "input", "input_list", "tensors", "tensor")

_LEAVE_SECONDS = 2.0


class CollectiveHook:
    """Records the collectives of this process while it is installed."""

    def __init__(self, writer: Writer, failures: Failures, arrive: Callable[[], None] | None) -> None:
        torch: Any = importlib.import_module("torch")
        c10d: Any = importlib.import_module("torch._C._distributed_c10d")

        self._writer = writer
        self._failures = failures
        self._arrive = arrive
        self._group_of = c10d.ProcessGroup.unbox
        self._work_of = c10d.Work.unbox
        self._counts: defaultdict[str, Any] = defaultdict(itertools.count)
        self._below = torch._C._after_autograd_keyset
        self._pending: set[object] = set()
        atexit.register(self._leave)
        self._library = torch.library.Library("c10d", "IMPL")
        for operator, name in OPERATIONS.items():
            packet = getattr(torch.ops.c10d, operator, None)
            if packet is not None:
                self._install(packet.default, operator, name)

    def remove(self) -> None:
        """Take the kernels out again."""
        self._library._destroy()
        if not self._pending:
            atexit.unregister(self._leave)

    def forget(self) -> None:
        """Wait for nothing: in a forked child no collective completes."""
        self._pending.clear()

    def _leave(self) -> None:
        """The interpreter ends. A collective that fails after that would call back into a dead
        interpreter, which aborts the process: wait for those under way, but at most two seconds, and
        keep the groups of the others from being destroyed, which would fail them."""
        deadline = time.monotonic() + _LEAVE_SECONDS
        while self._pending and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._pending:
            c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
            for group in list(c10d._world.pg_map):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))

    def _install(self, operator: Any, short: str, name: str) -> None:
        arguments = [argument.name for argument in operator._schema.arguments]
        seen = _Operator(
            number=self._writer.name_number(name),
            inputs=next(arguments.index(each) for each in _INPUTS if each in arguments),
            group=arguments.index("process_group"),
            asynchronous=arguments.index("async_op") if "async_op" in arguments else None,
        )
        below = self._below

        def on_cpu(keys: Any, *arguments: Any, **named: Any) -> Any:
            enqueued = time.monotonic()
            result = operator.redispatch(keys & below, *arguments, **named)
            try:
                self._follow(seen, arguments, result, enqueued)
            except Exception as error:  # noqa: BLE001 - the collective is under way: training must go on
                self._failures.note("follow a collective", error)
            return result

        _keep_from_compiler(on_cpu)
        self._library.impl(short, on_cpu, "AutogradCPU", with_keyset=True)
        arrive = self._arrive
        if arrive is None:
            return

        def on_cuda(keys: Any, *arguments: Any, **named: Any) -> Any:
            try:
                arrive()
            except Exception as error:  # noqa: BLE001 - as above
                self._failures.note("time the arrival at a collective", error)
            return operator.redispatch(keys & below, *arguments, **named)

        _keep_from_compiler(on_cuda)
        self._library.impl(short, on_cuda, "AutogradCUDA", with_keyset=True)

    def _follow(self, operator: _Operator, arguments: tuple[Any, ...], result: Any, enqueued: float) -> None:
        """Have the record written when the collective completes."""
        group = self._group_of(arguments[operator.group])
        label = group.group_desc
        if not label or label == "undefined":
            label = group.group_name
        count = next(self._counts[label])
        size = _bytes(arguments[operator.inputs])
        at = operator.asynchronous
        blocking = at is not None and len(arguments) > at and not arguments[at]
        name = self._writer.name_number(label)
        append = self._writer.append
        pending, token = self._pending, object()

        def completed(future: Any) -> None:
            flags = layout.BLOCKING if blocking else 0
            if future is not None and _failed(future):
                flags |= layout.FAILED
            pending.discard(token)
            append(
                RecordKind.COLLECTIVE, operator.number, enqueued, time.monotonic(),
                layout.COLLECTIVE, size, count, name, flags,
            )  # fmt: skip

        future = self._future(result)
        if future is None:
            completed(None)
        else:
            pending.add(token)
            future.add_done_callback(completed)

    def _future(self, result: Any) -> Any:
        """The future of the work, or None where there is none (blocking barrier, send and receive)."""
        work = result[-1] if isinstance(result, tuple) and result else result
        if work is None or isinstance(work, tuple):
            return None
        try:
            return self._work_of(work).get_future()
        except RuntimeError:  # "getFuture not implemented", for point-to-point on gloo
            return None


class _Operator:
    """Where an operator keeps what we want of its arguments."""

    __slots__ = ("asynchronous", "group", "inputs", "number")

    def __init__(self, *, number: int, inputs: int, group: int, asynchronous: int | None) -> None:
        self.number = number
        self.inputs = inputs
        self.group = group
        self.asynchronous = asynchronous


def _keep_from_compiler(kernel: Any) -> None:
    """Under a compiled model torch.compile would compile the kernel too, and all it calls, and warn.

    Not by `torch.compiler.disable`: that imports the compiler, which takes a second.
    """
    torch: Any = importlib.import_module("torch")
    with contextlib.suppress(AttributeError):  # another torch may know another way
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(kernel.__code__, frames._FrameExecStrategy(skip, skip))


def _bytes(tensors: Any) -> int:
    if isinstance(tensors, list | tuple):
        return sum(map(_bytes, tensors))
    if tensors.is_sparse:  # has no `nbytes`; what travels is its parts
        return _bytes([tensors._indices(), tensors._values()])
    return int(tensors.nbytes)


def _failed(future: Any) -> bool:
    try:
        future.value()
    except RuntimeError:
        return True
    return False
