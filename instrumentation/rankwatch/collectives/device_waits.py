"""Where the compute stream of a GPU waits for other ranks.

- A synchronous collective is waited for where it is called. From torch 2.8 on it even runs on the current
  stream (`ProcessGroupNCCL::collective`, `asyncOp`).
- Of an asynchronous one, the stream waits in `Work.wait` or, for functional collectives, in `wait_tensor`.
- FSDP calls its collectives inside `with device_handle.stream(...)` of streams of their own, and the compute
  stream waits for an event of these (`_fsdp_collectives.py`: `foreach_all_gather`, `foreach_reduce`;
  `_runtime_utils.py` in FSDP1). So `torch.cuda.Event.record` notes which events follow a collective, and
  `torch.cuda.Event.wait`, which `Stream.wait_event` and `Stream.wait_stream` call, is a wait for these.
- The sends and receives of `batch_isend_irecv` have one work, which `ProcessGroup._end_coalescing` returns
  (`_coalescing_manager`). Replacements of ours around it tie the work to its messages.
- DDP's reducer waits in C++ at the end of the backward pass (`Reducer::finalize_backward`), in a callback
  that it queues with the last bucket. Callbacks of ours around it see that wait. It also waits in C++ for
  the broadcast of buffers (`_broadcast_coalesced`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankwatch.blackbox import layout
from rankwatch.collectives.groups import Groups
from rankwatch.compiling import Substitutes
from rankwatch.device.cuda import ComputeStream, Gpu
from rankwatch.device.parts import NO_MESSAGES, WaitKey
from rankwatch.failures import Failures

MOST_STORAGES = 1024
"""Outputs of functional collectives whose operation is remembered."""
MOST_STREAMS = 256
"""Streams of communication that are remembered. Torch has pools of 32, but others may make more for ever."""
MOST_BATCHES = 1024
"""Batches of messages that nobody has waited for yet."""
_FOLLOW = "time a wait on the GPU"
_MARK = "_rankwatch_follows"
"""Attribute of an event that follows a collective: which one."""
_NO_KEY = WaitKey(0, 0, 0)
_MESSAGES = (12, 13, 14)
_COALESCED = 17
"""Values of `c10d::OpType`: SEND, RECV and RECVANYSOURCE, and COALESCED (`Work.hpp`)."""


class DeviceWaits:
    """Shows the timeline of the GPU each wait of its compute stream.

    broadcast: number of the name of that operation. torch, distributed: the modules.
    """

    def __init__(
        self,
        gpu: Gpu,
        groups: Groups,
        failures: Failures,
        broadcast: int,
        torch: Any,
        distributed: Any,
    ) -> None:
        self._gpu = gpu
        self._timeline = gpu.timeline
        self._groups = groups
        self._failures = failures
        self._communicating: dict[int, WaitKey] = {}
        """Address of a stream that collectives run on, other than the compute stream -> the last of them."""
        self._latest = self._latest_message = self._latest_collective = _NO_KEY
        """The asynchronous operations that were enqueued last: of any kind, and of two kinds."""
        self._by_storage: dict[int, WaitKey] = {}
        self._batch: list[int] | None = None
        """Messages of the batch that is being made."""
        self._by_work: dict[int, WaitKey] = {}
        """Address of the work of a batch -> the batch."""
        self._last_in_backward: object = None
        self._queue: Callable[[Callable[[], None]], None] = (
            torch.autograd.Variable._execution_engine.queue_callback
        )
        self._substitutes = Substitutes(
            (torch.cuda.Event, "record", self._record),
            (torch.cuda.Event, "wait", self._wait),
            (distributed, "_broadcast_coalesced", self._broadcast(broadcast)),
            (distributed.ProcessGroup, "_start_coalescing", self._start_batch),
            (distributed.ProcessGroup, "_end_coalescing", self._end_batch),
        )
        self.remove = self._substitutes.remove
        """Restores what was replaced."""

    @property
    def complete(self) -> bool:
        """True if this torch has all functions of events that show waits."""
        return not {"record", "wait"}.intersection(self._substitutes.missing)

    # -- at the call ------------------------------------------------------------------------------

    def enqueues(
        self, device: int, key: WaitKey, *, asynchronous: bool, output: Any, message: int = 0
    ) -> bool:
        """Note that an operation is about to be enqueued. Returns True if `ends` must follow.

        output: of a functional collective; else None. message: a send or receive, as in a record.
        """
        gpu = self._gpu
        if gpu.stream is None:
            gpu.use(device)
        if gpu.captures.going_on():
            gpu.captures.collective()
            return False
        if device != gpu.device:
            self._timeline.spoil()  # the compute stream may wait for that device, which nothing shows
            return False
        if not asynchronous:
            if self._timeline.wait_began(key):
                return True
            self._runs_elsewhere(key)
            return False
        self._latest = key
        if key.flags & layout.POINT_TO_POINT:
            self._latest_message = key
            if self._batch is not None and len(self._batch) <= layout.DEVICE_MESSAGES:
                self._batch.append(message)
        else:
            self._latest_collective = key
        if output is not None:
            self._remember(output, key)
        stream = self._compute()
        if stream is not None and stream.in_backward():
            self._follow_backward(key)
        return False

    def _runs_elsewhere(self, key: WaitKey) -> None:
        stream = self._compute()
        if stream is not None and (current := stream.current()) != stream.handle:
            self._communicates(current, key)

    def _communicates(self, address: int, key: WaitKey) -> None:
        _keep(self._communicating, address, key, MOST_STREAMS)

    def _compute(self) -> ComputeStream | None:
        """Return the compute stream; None until it is known, because side streams cannot be told from it
        before."""
        return self._gpu.stream if self._timeline.stream is not None else None

    def _remember(self, output: Any, key: WaitKey) -> None:
        for each in output if isinstance(output, list) else (output,):
            _keep(self._by_storage, each.untyped_storage()._cdata, key, MOST_STORAGES)

    def _follow_backward(self, key: WaitKey) -> None:
        """Have the callbacks of this backward pass timed that are queued from here on."""
        last = object()
        self._last_in_backward = last

        def begin() -> None:
            if self._last_in_backward is last:  # the wait begins after the last operation only
                self._last_in_backward = None
                if self.begins(key):
                    self._failures.attempt(_FOLLOW, self._queue, self.ends)

        self._failures.attempt(_FOLLOW, self._queue, begin)

    # -- at the wait ------------------------------------------------------------------------------

    def begins(self, key: WaitKey | None = None) -> bool:
        """Begin to have the stream of this thread wait. Returns True if `ends` must follow."""
        try:
            key = key or self._latest
            if self._timeline.wait_began(key):
                return True
            if not self._gpu.captures.going_on():
                self._runs_elsewhere(key)
        except Exception as error:  # noqa: BLE001 - the trainer's wait must go on
            self._failures.note(_FOLLOW, error)
        return False

    def ends(self) -> None:
        """Note that the wait is enqueued."""
        try:
            self._timeline.wait_ended()
        except Exception as error:  # noqa: BLE001 - as above
            self._failures.note(_FOLLOW, error)

    def begins_work(self, work: Any) -> bool:
        """Do as `begins`, for `Work.wait`. The work shows its kind of operation, but not its group."""
        key = self._latest
        try:
            kind = work._get_op_type()
            if kind in _MESSAGES:
                key = self._latest_message
            elif kind == _COALESCED:
                key = self._by_work.pop(id(work), key)
            else:
                key = self._latest_collective
        except Exception:  # noqa: BLE001 - a work that is written in Python has no such method
            key = self._latest
        return self.begins(key)

    def begins_for(self, tensor: Any) -> bool:
        """Do as `begins`, for the output of a functional collective."""
        try:
            key = self._by_storage.get(tensor.untyped_storage()._cdata)
        except Exception as error:  # noqa: BLE001 - as above
            self._failures.note(_FOLLOW, error)
            key = None
        return self.begins(key)

    # -- batches of messages ----------------------------------------------------------------------

    def _start_batch(self, original: Any) -> Any:
        def start_coalescing(*arguments: Any, **named: Any) -> Any:
            self._batch = []
            return original(*arguments, **named)

        return start_coalescing

    def _end_batch(self, original: Any) -> Any:
        def end_coalescing(*arguments: Any, **named: Any) -> Any:
            marks = self._timeline.marks_made
            work = original(*arguments, **named)
            self._failures.attempt(_FOLLOW, self._batch_ended, id(work), marks)
            return work

        return end_coalescing

    def _batch_ended(self, work: int, marks: int) -> None:
        """Take a batch. marks: made before it was enqueued."""
        messages, self._batch = self._batch or [], None
        self._by_work.pop(work, None)  # of a work that is gone
        spare = layout.DEVICE_MESSAGES - len(messages)
        if messages and spare >= 0 and all(messages):
            shown = (*messages, *NO_MESSAGES[:spare])
            batch = self._latest_message._replace(messages=shown, marks=marks)
            _keep(self._by_work, work, batch, MOST_BATCHES)

    # -- events and streams -----------------------------------------------------------------------

    def _record(self, original: Any) -> Any:
        communicating, attempt, recorded = self._communicating, self._failures.attempt, self._recorded

        def record(event: Any, stream: Any = None) -> Any:
            result = original(event, stream)
            if communicating:
                attempt(_FOLLOW, recorded, event, stream)
            return result

        return record

    def _recorded(self, event: Any, stream: Any) -> None:
        compute = self._compute()
        if compute is not None:
            self._communicating.pop(compute.handle, None)  # it has changed since
        key = self._communicating.get(self._address(stream))
        if key is not None:
            setattr(event, _MARK, key)
        elif _MARK in event.__dict__:
            delattr(event, _MARK)

    def _wait(self, original: Any) -> Any:
        communicating = self._communicating

        def wait(event: Any, stream: Any = None) -> Any:
            key = event.__dict__.get(_MARK) if communicating else None
            if key is None or not self._begins_on(stream, key):
                return original(event, stream)
            try:
                return original(event, stream)
            finally:
                self.ends()

        return wait

    def _begins_on(self, stream: Any, key: WaitKey) -> bool:
        """Do as `begins`, for a wait of this stream. Another stream that waits communicates from then on."""
        try:
            compute, address = self._compute(), self._address(stream)
            if compute is None or self._gpu.captures.going_on():
                return False
            if address == compute.handle:
                return self._timeline.wait_began(key, current=True)
            self._communicates(address, key)
        except Exception as error:  # noqa: BLE001 - the trainer's wait must go on
            self._failures.note(_FOLLOW, error)
        return False

    def _address(self, stream: Any) -> int:
        if stream is not None:
            return int(getattr(stream, "cuda_stream", -1))
        compute = self._compute()
        return compute.current() if compute is not None else -1

    def _broadcast(self, operation: int) -> Callable[[Any], Any]:
        def replacement(original: Any) -> Any:
            def broadcast(process_group: Any, *arguments: Any, **named: Any) -> Any:
                if not self._timeline.stream or not self.begins(self._key(operation, process_group)):
                    return original(process_group, *arguments, **named)
                try:
                    return original(process_group, *arguments, **named)
                finally:
                    self.ends()

            return broadcast

        return replacement

    def _key(self, operation: int, process_group: Any) -> WaitKey:
        try:
            return WaitKey(operation, self._groups.of(process_group).number, 0)
        except Exception as error:  # noqa: BLE001 - as above
            self._failures.note(_FOLLOW, error)
            return WaitKey(operation, 0, 0)


def _keep(known: dict[int, WaitKey], address: int, key: WaitKey, most: int) -> None:
    """Keep the key by its address, and forget the one that was kept least recently if there are too many."""
    known.pop(address, None)
    if len(known) >= most:
        del known[next(iter(known))]
    known[address] = key
