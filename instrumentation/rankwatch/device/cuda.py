"""CUDA as torch shows it: the compute stream, and the captures of CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.compiling import Substitutes

if TYPE_CHECKING:
    from rankwatch.device.timeline import DeviceTimeline

_MOST_HELD_UP = 3
"""Captures that a question has held up too long; further ones wait for none, as that may be on purpose."""


class ComputeStream:
    """The stream on which the training computes, of one device of a process that uses CUDA already.

    All calls name the device, because the current one may be another. device: its index. torch: the module.
    """

    def __init__(self, device: int, captures: Captures, torch: Any) -> None:
        self.device = device
        self._captures = captures
        self._current: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        self._current_stream = torch.cuda.current_stream
        self._new_event = torch._C._CudaEventBase  # `torch.cuda.Event` adds Python around it
        self._record = torch._C._CudaEventBase.record
        self._graph_task: Callable[[], int] = torch._C._current_graph_task_id
        self._stream: Any = None
        self.handle = -1
        """Address of the stream; -1 before the first step that begins with the device known."""

    def follow(self) -> bool:
        """Take the stream that is current now as the compute stream. Returns True if it is another one."""
        handle = self._current(self.device)
        if handle == self.handle:
            return False
        self._stream = self._current_stream(self.device)
        self.handle = handle
        return True

    def event(self) -> Any:
        """Return a new event with timing."""
        return self._new_event(enable_timing=True)

    def record(self, event: Any) -> None:
        """Record the event on the compute stream."""
        self._record(event, self._stream)

    def is_current(self) -> bool:
        """Return True if what this thread enqueues goes to the compute stream."""
        return self._current(self.device) == self.handle

    def current(self) -> int:
        """Return the address of the stream to which this thread enqueues on the device."""
        return self._current(self.device)

    def in_backward(self) -> bool:
        """Return True if this thread executes a backward pass."""
        return self._graph_task() != -1

    def is_capturing(self) -> bool:
        """Return True while the process captures a CUDA graph through torch."""
        captures = self._captures
        return bool(captures.open) or (captures.partly_visible and captures.going_on())


class Captures:
    """The captures of CUDA graphs in this process.

    While one goes on, no event may be queried and no pinned memory allocated, in any thread. So it begins
    once nobody asks for the flight recorder (see `rankwatch.blackbox.capturing`).

    on_replay: called when a graph that holds collectives is about to be replayed.
    """

    def __init__(self, writer: Writer, torch: Any, on_replay: Callable[[], object]) -> None:
        self._writer = writer
        self._on_replay = on_replay
        self.open: dict[int, Any] = {}
        """Captures under way: address of the graph -> the stream on which it began; None while it begins."""
        self._patience = _MOST_HELD_UP
        self._in_use: Callable[[], bool] = torch.cuda.is_initialized
        self._capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self._cuda = torch.cuda
        self._collectives = False
        graph = torch.cuda.CUDAGraph
        substitutes = Substitutes(
            (graph, "capture_begin", self._begin),
            (graph, "capture_end", self._end),
            (graph, "replay", self._replay),
        )
        self.remove = substitutes.remove
        """Restores the methods, unless somebody else has replaced ours."""
        self.partly_visible = bool(substitutes.missing)
        """True if this torch lacks a method that shows captures or replays."""

    def going_on(self) -> bool:
        """Return True while the process captures a graph; by another library than torch only in this thread.

        While torch does not use CUDA, the driver is not asked: the call would initialise it, or raise where
        there is none. CUDA also refuses to answer while another thread captures.
        """
        if self.open or not self._in_use():
            return bool(self.open)
        try:
            return self._capturing()
        except Exception:  # noqa: BLE001 - called around the trainer's own code
            return True

    def still_going_on(self) -> bool:
        """Answer as `going_on`, at the end of a step: forgets captures that nobody has ended and whose
        streams capture nothing any more. Any thread may ask for the state of a stream, also while another
        captures."""
        for graph, stream in list(self.open.items()):
            if stream is not None and not self._captures(stream):
                self._over(graph)
        return self.going_on()

    def collective(self) -> None:
        """Note that a collective is captured."""
        self._collectives = True

    def _captures(self, stream: Any) -> bool:
        """Return True if this stream captures, or CUDA does not say."""
        try:
            with self._cuda.stream(stream):
                return self._capturing()
        except Exception:  # noqa: BLE001 - called around the trainer's own code
            return True

    def _announce(self, graph: int) -> None:
        self.open[graph] = None
        self._writer.integers[Now.CAPTURING] = len(self.open)
        if self._patience and not self._writer.wait_for_questions():
            self._patience -= 1

    def _over(self, graph: int, before: Any = None) -> None:
        self.open.pop(graph, None)
        if before is not None:
            self.open[graph] = before
        self._writer.integers[Now.CAPTURING] = len(self.open)

    def _stream(self) -> Any:
        try:
            return self._cuda.current_stream()
        except Exception:  # noqa: BLE001 - called around the trainer's own code
            return None

    def _begin(self, original: Any) -> Any:
        def capture_begin(graph: Any, *arguments: Any, **named: Any) -> Any:
            if not self.open:
                self._collectives = False
            stream, before = self._stream(), self.open.get(id(graph))
            try:
                self._announce(id(graph))
                result = original(graph, *arguments, **named)
            except BaseException:
                self._over(id(graph), before)
                raise
            self.open[id(graph)] = stream
            return result

        return capture_begin

    def _end(self, original: Any) -> Any:
        def capture_end(graph: Any, *arguments: Any, **named: Any) -> Any:
            try:
                return original(graph, *arguments, **named)
            finally:
                self._over(id(graph))
                if self._collectives:
                    graph._rankwatch_has_collectives = True

        return capture_end

    def _replay(self, original: Any) -> Any:
        def replay(graph: Any, *arguments: Any, **named: Any) -> Any:
            if getattr(graph, "_rankwatch_has_collectives", False):
                self._on_replay()
            return original(graph, *arguments, **named)

        return replay


class Gpu:
    """The GPU of this rank: its compute stream, once the training has shown which device it uses."""

    def __init__(self, timeline: DeviceTimeline, captures: Captures, torch: Any) -> None:
        self._torch = torch
        self.timeline = timeline
        self.captures = captures
        self.device: int | None = None
        """Index of the device; None until the training has shown it."""
        self.stream: ComputeStream | None = None

    def use(self, device: int) -> None:
        """Use this device, which the training computes on or communicates from. The first one counts."""
        if self.stream is None:
            self.device = device
            self.stream = ComputeStream(device, self.captures, self._torch)
            self.timeline.use(self.stream)
