"""Phases on the GPU's clock, by CUDA events that are recorded during the phase and read some steps later.

On the host a phase ends when its work is enqueued, not when it is done. The events show how long the GPU
took. The *arrival* is the moment when the compute stream reached the last collective of the phase. The time
before it is the rank's own work; the time after it includes waiting for other ranks.
"""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Any, NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.failures import Failures
from rankwatch.spans import Span
from rankwatch.steps import Steps

_MAX_PENDING = 512


class _Pending(NamedTuple):
    number: int
    step: int
    moment: float
    began: Any
    arrived: Any
    ended: Any


class DevicePhases:
    """CUDA events of the phases of one run. At most 512 phases wait for the GPU; older ones are dropped."""

    def __init__(self, writer: Writer, steps: Steps, failures: Failures, new_event: Any) -> None:
        self._writer = writer
        self._failures = failures
        self._steps = steps
        self._new_event = new_event
        self._free: list[Any] = []
        self._pending: deque[_Pending] = deque(maxlen=_MAX_PENDING)
        self.open: DeviceSpan | None = None
        """The innermost open phase."""

    def span(self, host: Span, number: int) -> DeviceSpan:
        """Return a phase that is timed on the host and on the GPU."""
        return DeviceSpan(self, host, number)

    def arrive(self) -> None:
        """Note that a collective is about to be enqueued on the current stream."""
        if self.open is not None:
            self.open.arrive()

    def event(self) -> Any:
        """Return an event, new or reused, recorded on the current stream.

        None if CUDA refuses it: after an error on the GPU, or in a forked child.
        """
        try:
            event = self._free.pop() if self._free else self._new_event()
            event.record()
        except Exception as error:  # noqa: BLE001 - called around the trainer's own code
            self._failures.note("record an event on the GPU", error)
            return None
        return event

    def close(self, number: int, began: Any, arrived: Any) -> None:
        """Record the end of the phase on the stream and keep its events until the GPU has passed it."""
        ended = self.event()
        if began is not None and ended is not None:
            self._pending.append(
                _Pending(number, self._steps.current, time.monotonic(), began, arrived, ended)
            )

    def resolve(self) -> None:
        """Record the phases that the GPU has finished. Never waits."""
        pending = self._pending
        while pending:
            try:
                if not pending[0].ended.query():
                    return
            except Exception:  # recorded while a CUDA graph was captured; it must not block the others
                pending.popleft()
                raise
            number, step, moment, began, arrived, ended = pending.popleft()
            seconds = began.elapsed_time(ended) / 1e3
            local = seconds if arrived is None else began.elapsed_time(arrived) / 1e3
            self._writer.append(
                RecordKind.DEVICE_PHASE, number, moment, moment, layout.DEVICE, seconds, local, step
            )
            self._free += [event for event in (began, arrived, ended) if event is not None]


class DeviceSpan:
    """One phase, timed on the host and on the GPU."""

    __slots__ = ("_arrived", "_began", "_host", "_number", "_outer", "_phases")

    def __init__(self, phases: DevicePhases, host: Span, number: int) -> None:
        self._phases = phases
        self._host = host
        self._number = number
        self._outer: DeviceSpan | None = None
        self._began: Any = None
        self._arrived: Any = None

    def arrive(self) -> None:
        """Remember this point of the current stream. A later call replaces it."""
        if self._arrived is None:
            self._arrived = self._phases.event()
        else:
            self._arrived.record()

    def __enter__(self) -> None:
        self._host.__enter__()
        phases = self._phases
        self._outer, phases.open = phases.open, self
        self._arrived = None
        self._began = phases.event()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        phases = self._phases
        phases.close(self._number, self._began, self._arrived)
        phases.open = self._outer
        self._host.__exit__(kind, error, trace)


def cuda_event_factory() -> Any:
    """Return a function that creates CUDA timing events; None if torch is not loaded or sees no GPU."""
    import sys

    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return lambda: torch.cuda.Event(enable_timing=True)
