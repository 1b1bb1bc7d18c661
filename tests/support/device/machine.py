"""A simulated GPU: streams, events and graphs on a clock of its own, and the part of torch that shows them.

An operation starts when the host has enqueued it and all operations that it comes after have ended. Its end
becomes known once all of these are known, so that a collective ends for nobody before its last rank has
enqueued it. Nothing here waits in real time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

RESOLUTION_MS = 5e-4
"""Of `elapsed_time`, as CUDA documents it."""
_NO_GRAPH_TASK = -1


class Operation:
    """Work on a device that takes `seconds`, once so many streams have come to it."""

    __slots__ = ("_followers", "_missing", "end", "seconds", "start")

    def __init__(self, seconds: float, arrivals: int = 1) -> None:
        self.seconds = seconds
        self.start = 0.0
        self.end = math.inf
        """Infinite until it is known."""
        self._missing = arrivals
        self._followers: list[Operation] = []

    @property
    def known(self) -> bool:
        """True once its end is known."""
        return self.end < math.inf

    def arrive(self, moment: float, after: Iterable[Operation]) -> None:
        """A stream comes to it, not before this moment and not before these operations have ended."""
        self.start = max(self.start, moment)
        self._missing -= 1
        for each in after:
            if each.known:
                self.start = max(self.start, each.end)
            else:
                each._followers.append(self)
                self._missing += 1
        if not self._missing:
            self._finish()

    def _finish(self) -> None:
        done = [self]
        while done:
            each = done.pop()
            each.end = each.start + each.seconds
            for follower in each._followers:
                follower.start = max(follower.start, each.end)
                follower._missing -= 1
                if not follower._missing:
                    done.append(follower)
            each._followers = []


class Host:
    """The clock of the thread that enqueues, in seconds."""

    def __init__(self, now: float) -> None:
        self.now = now

    def clock(self) -> float:
        """Now."""
        return self.now

    def spend(self, seconds: float) -> None:
        """Work on the host."""
        self.now += seconds


class Stream:
    """A stream of a device. The default stream of each device has the address 0, as in CUDA."""

    def __init__(self, machine: Machine, device: int, address: int) -> None:
        self._machine = machine
        self.device_index = device
        self.cuda_stream = address
        self.last = Operation(0.0)
        self.last.end = 0.0
        self._after: list[Operation] = []

    def enqueue(self, operation: Operation) -> Operation:
        """Run it after all that was enqueued before."""
        operation.arrive(self._machine.host.now, (self.last, *self._after))
        self.last = operation
        self._after.clear()
        return operation

    def follow(self, operation: Operation) -> None:
        """Have all that is enqueued from now on come after this operation."""
        self._after.append(operation)

    def record_event(self, event: Any = None) -> Any:
        """As `torch.cuda.Stream.record_event`."""
        event = event or self._machine.torch.cuda.Event()
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """As `torch.cuda.Stream.wait_event`."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """As `torch.cuda.Stream.wait_stream`."""
        self.wait_event(stream.record_event())


class EventBase:
    """What torch implements in C++ as `_CudaEventBase`."""

    machine: Machine

    def __init__(self, *, enable_timing: bool = False) -> None:
        self._timed = enable_timing
        self._point: Operation | None = None
        self.machine.events_made += 1

    def record(self, stream: Stream) -> None:
        """Record it on a stream."""
        self.machine.refuse_if_broken()
        self.machine.events_recorded += 1
        self._point = stream.enqueue(Operation(0.0))

    def block(self, stream: Stream) -> None:
        """Have a stream wait for it."""
        if self._point is not None:
            stream.follow(self._point)

    def query(self) -> bool:
        """True once the device has passed it, as far as the host can know."""
        self.machine.refuse_during_capture()
        return self._point is None or self._point.end <= self.machine.host.now

    def elapsed_time(self, later: EventBase) -> float:
        """Milliseconds between two events that the device has passed."""
        assert self._timed and later._timed, "CUDA raises for events without timing"
        assert self._point is not None and later._point is not None, "CUDA raises for unrecorded events"
        assert self._point.known and later._point.known, "CUDA raises for events not passed"
        return round((later._point.end - self._point.end) * 1e3 / RESOLUTION_MS) * RESOLUTION_MS

    def synchronize(self) -> None:
        """Nobody but the trainer may call this."""
        self.machine.synchronisations += 1


class Graph:
    """A CUDA graph: what was issued between `capture_begin` and `capture_end`, again at each `replay`."""

    machine: Machine

    def __init__(self) -> None:
        self._actions: list[Callable[[], object]] = []


class Autograd:
    """The engine that runs a backward pass, and its final callbacks in the order of their queuing."""

    def __init__(self) -> None:
        self.task = _NO_GRAPH_TASK
        self._callbacks: list[Callable[[], None]] = []

    def queue_callback(self, callback: Callable[[], None]) -> None:
        """As `Variable._execution_engine.queue_callback`."""
        if self.task == _NO_GRAPH_TASK:
            raise RuntimeError("Final callbacks can only be installed during backward pass.")
        self._callbacks.append(callback)

    @contextmanager
    def backward(self) -> Iterator[None]:
        """A backward pass; callbacks that a callback queues run, too (engine.cpp, `exec_post_processing`)."""
        self.task = 1
        yield
        for callback in self._callbacks:
            callback()
        self._callbacks.clear()
        self.task = _NO_GRAPH_TASK


class Machine:
    """The host thread of one process, and its devices. `torch` is the module as far as our hooks use it."""

    def __init__(self, began: float) -> None:
        self.host = Host(began)
        self.autograd = Autograd()
        self.events_made = self.events_recorded = self.synchronisations = 0
        self.broken = False
        """Whether the device refuses events, as after an error on it."""
        self.in_use = True
        """Whether torch has initialised CUDA. Before, no call may reach the driver: it may not be there."""
        self.device = 0
        """Index of the current device."""
        self._streams = 0
        self._current: dict[int, Stream] = {}
        self._capture: list[Callable[[], object]] | None = None
        self._captured: Stream | None = None
        """The stream on which the capture began. Streams that join it later do not say so here."""
        self.torch = self._module()

    def stream(self) -> Stream:
        """A new stream of the current device."""
        self._streams += 1
        return Stream(self, self.device, 0x7F00_0000 + self._streams)

    def current(self, device: int | None = None) -> Stream:
        """The current stream of a device."""
        device = self.device if device is None else device
        if device not in self._current:
            self._current[device] = Stream(self, device, 0)
        return self._current[device]

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """`with torch.cuda.stream(stream):`"""
        before, device = self.current(stream.device_index), self.device
        self._current[stream.device_index], self.device = stream, stream.device_index
        yield
        self._current[stream.device_index], self.device = before, device

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """A capture by another library than torch, on the current stream."""
        self._capture, self._captured = [], self.current()
        yield
        self._capture = None

    @contextmanager
    def on_device(self, device: int) -> Iterator[None]:
        """`with torch.cuda.device(device):`"""
        before, self.device = self.device, device
        yield
        self.device = before

    def issue(self, action: Callable[[], object]) -> None:
        """Enqueue something, or have it captured."""
        if self._capture is None:
            action()
        else:
            self._capture.append(action)

    def is_current_stream_capturing(self) -> bool:
        """As in torch, where it calls `cudaGetDevice` first."""
        if not self.in_use:
            raise RuntimeError("Found no NVIDIA driver on your system.")
        self.refuse_if_broken()
        return self._capture is not None and self.current() is self._captured

    def refuse_during_capture(self) -> None:
        """Raise as CUDA does for calls that are illegal during a capture."""
        self.refuse_if_broken()
        if self._capture is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    def refuse_if_broken(self) -> None:
        """Raise as CUDA does after an error on the device."""
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def _module(self) -> Any:
        base = type("_CudaEventBase", (EventBase,), {"machine": self})
        return SimpleNamespace(
            cuda=SimpleNamespace(
                Event=_event_class(base),
                CUDAGraph=self._graph_class(),
                is_initialized=lambda: self.in_use,
                is_current_stream_capturing=self.is_current_stream_capturing,
                current_stream=self.current,
                stream=self.on,
            ),
            autograd=SimpleNamespace(
                Variable=SimpleNamespace(
                    _execution_engine=SimpleNamespace(queue_callback=self.autograd.queue_callback)
                )
            ),
            _C=SimpleNamespace(
                _cuda_getCurrentRawStream=lambda device: self.current(device).cuda_stream,
                _CudaEventBase=base,
                _current_graph_task_id=lambda: self.autograd.task,
            ),
        )

    def _graph_class(self) -> type[Graph]:
        """`torch.cuda.CUDAGraph` of this process; its methods can be replaced."""

        class CUDAGraph(Graph):
            machine = self

            def capture_begin(self) -> None:
                self.machine._capture, self.machine._captured = self._actions, self.machine.current()

            def capture_end(self) -> None:
                self.machine._capture = None

            def replay(self) -> None:
                for action in self._actions:
                    action()

        return CUDAGraph


def _event_class(base: type[EventBase]) -> type[EventBase]:
    """`torch.cuda.Event` of a process (torch/cuda/streams.py); its methods can be replaced."""

    class Event(base):  # type: ignore[misc,valid-type]
        def record(self, stream: Stream | None = None) -> None:
            super().record(stream or self.machine.current())

        def wait(self, stream: Stream | None = None) -> None:
            self.block(stream or self.machine.current())

    return Event
