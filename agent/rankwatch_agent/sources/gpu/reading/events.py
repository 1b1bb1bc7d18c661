"""XID errors from NVML's events: one thread waits for those of all GPUs."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pynvml

from rankwatch_agent.sources.gpu.protocol import XidEvent
from rankwatch_agent.sources.gpu.reading.device import describe
from rankwatch_agent.sources.gpu.reading.gpus import handle_address

WAIT_MILLISECONDS = 500
"""Length of one wait, and so of the delay that this thread adds to the end of the worker."""
_STOP_SECONDS = 1.0
_ERROR_PAUSE_SECONDS = 0.5
"""Pause after an error of the driver: a lost GPU makes each wait fail at once."""
_IGNORED_PAUSE_SECONDS = 0.05
"""Pause after an ignored event: a driver that delivers them endlessly must not keep a CPU busy."""
MAX_EVENTS = 256
"""Events kept between two readings; the oldest are dropped first."""


class XidListener:
    """Collects XID errors. One thread calls `watch`, `take` and `stop`; `stop` alone waits for the driver."""

    def __init__(
        self, *, wait_milliseconds: int = WAIT_MILLISECONDS, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._wait_milliseconds = wait_milliseconds
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._events: deque[XidEvent] = deque(maxlen=MAX_EVENTS)
        self._dropped = 0
        self._error = ""
        self._wanted: dict[int, Any] = {}
        self._uuids: dict[int, str] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, gpus: Mapping[str, Any]) -> None:
        """Listen to these GPUs (UUID -> handle) and to no others."""
        wanted = {handle_address(handle): handle for handle in gpus.values()}
        if wanted.keys() == self._wanted.keys():
            return
        for uuid, handle in gpus.items():
            self._uuids[handle_address(handle)] = uuid  # a lost GPU no longer answers for it
        self._wanted = wanted
        if self._thread is None:
            self._thread = threading.Thread(target=self._listen, name="xid-events", daemon=True)
            self._thread.start()

    def take(self) -> tuple[tuple[XidEvent, ...], list[str]]:
        """Events since the last call, and warnings for the log."""
        with self._lock:
            events, dropped, error = tuple(self._events), self._dropped, self._error
            self._events.clear()
            self._dropped, self._error = 0, ""
        warnings = [f"could not wait for XID errors: {error}"] if error else []
        if dropped:
            warnings.append(f"{dropped} XID errors came faster than they were read and were dropped")
        return events, warnings

    def stop(self) -> bool:
        """End the thread; False where it hangs in the driver."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
            return not self._thread.is_alive()
        return True

    def _listen(self) -> None:
        event_set: Any = None
        registered: dict[int, Any] | None = None
        while not self._stopping.is_set():
            try:
                wanted = self._wanted
                if wanted is not registered:
                    event_set = _replace(event_set, wanted)
                    registered = wanted
                event = pynvml.nvmlEventSetWait_v2(event_set, self._wait_milliseconds)
                if not self._keep(event):
                    self._stopping.wait(_IGNORED_PAUSE_SECONDS)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    with self._lock:
                        self._error = describe(error.value)
                    self._stopping.wait(_ERROR_PAUSE_SECONDS)
        _free(event_set)

    def _keep(self, event: Any) -> bool:
        """Keep the event; False where it is no XID error of a known GPU."""
        xid = int(event.eventData)
        if event.eventType != pynvml.nvmlEventTypeXidCriticalError or xid == 0:
            return False  # 0 is no error (leptonai/gpud#164)
        address = handle_address(event.device)
        uuid = self._uuids.get(address)
        with self._lock:
            if uuid is None:
                self._error = f"XID {xid} came from an unknown GPU"
                return False
            self._dropped += len(self._events) == self._events.maxlen
            self._events.append(XidEvent(uuid=uuid, xid=xid, timestamp_seconds=self._wall_clock()))
        return True


def _replace(old: Any, handles: Mapping[int, Any]) -> Any:
    """A new set of these GPUs; one that was just lost cannot be registered and is left out."""
    new = pynvml.nvmlEventSetCreate()
    for handle in handles.values():
        try:
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, new)
        except pynvml.NVMLError:
            continue  # the next reading finds it lost and watches the others
    _free(old)
    return new


def _free(event_set: Any) -> None:
    if event_set is not None:
        try:
            pynvml.nvmlEventSetFree(event_set)
        except pynvml.NVMLError:
            return  # the driver's shutdown frees it
