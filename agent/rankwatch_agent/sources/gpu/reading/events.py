"""XID errors as NVML delivers them: one thread waits for those of all GPUs."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pynvml

from rankwatch_agent.sources.gpu.protocol import XidEvent
from rankwatch_agent.sources.gpu.reading.features import describe
from rankwatch_agent.sources.gpu.reading.gpus import handle_address

WAIT_MILLISECONDS = 500
"""One wait; also how long the end of the worker waits for this thread."""
_STOP_SECONDS = 1.0
_PAUSE_SECONDS = 0.5
"""After an error of the driver: a lost GPU makes each wait fail at once."""
_NOTHING_SECONDS = 0.05
"""After an event that is none: a driver that delivers them endlessly must not cost a processor."""
MOST_EVENTS = 256
"""Events kept between two collections; the oldest go first."""


class XidListener:
    """Collects XID errors. One thread calls `watch`, `take` and `stop`; none of them waits for the driver."""

    def __init__(
        self, *, wait_milliseconds: int = WAIT_MILLISECONDS, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._wait_milliseconds = wait_milliseconds
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._events: deque[XidEvent] = deque(maxlen=MOST_EVENTS)
        self._dropped = 0
        self._error = ""
        self._wanted: dict[int, Any] = {}
        self._uuids: dict[int, str] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, gpus: Mapping[str, Any]) -> None:
        """Listen to these GPUs (UUID -> handle), and to no other."""
        wanted = {handle_address(handle): handle for handle in gpus.values()}
        if wanted.keys() == self._wanted.keys():
            return
        for uuid, handle in gpus.items():
            self._uuids[handle_address(handle)] = uuid  # a lost GPU cannot be asked for it any more
        self._wanted = wanted
        if self._thread is None:
            self._thread = threading.Thread(target=self._listen, name="xid-events", daemon=True)
            self._thread.start()

    def take(self) -> tuple[tuple[XidEvent, ...], list[str]]:
        """Events since the last call, and sentences for the log."""
        with self._lock:
            events, dropped, error = tuple(self._events), self._dropped, self._error
            self._events.clear()
            self._dropped, self._error = 0, ""
        warnings = [f"could not wait for XID errors: {error}"] if error else []
        if dropped:
            warnings.append(f"{dropped} XID errors came faster than they were collected and were dropped")
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
                if not self._note(event):
                    self._stopping.wait(_NOTHING_SECONDS)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    with self._lock:
                        self._error = describe(error.value)
                    self._stopping.wait(_PAUSE_SECONDS)
        _free(event_set)

    def _note(self, event: Any) -> bool:
        """Keep it; False where it is no XID error of a GPU that we know."""
        xid = int(event.eventData)
        if event.eventType != pynvml.nvmlEventTypeXidCriticalError or xid == 0:
            return False  # 0 is no error (leptonai/gpud#164)
        address = handle_address(event.device)
        uuid = self._uuids.get(address)
        with self._lock:
            if uuid is None:
                self._error = f"XID {xid} came from a GPU that was not listened to"
                return False
            self._dropped += len(self._events) == self._events.maxlen
            self._events.append(XidEvent(uuid=uuid, xid=xid, timestamp_seconds=self._wall_clock()))
        return True


def _replace(old: Any, handles: Mapping[int, Any]) -> Any:
    """A set with exactly these GPUs; one that cannot be registered (just lost) does not cost the others."""
    new = pynvml.nvmlEventSetCreate()
    for handle in handles.values():
        try:
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, new)
        except pynvml.NVMLError:
            continue  # the next collection finds it lost and watches the others
    _free(old)
    return new


def _free(event_set: Any) -> None:
    if event_set is not None:
        try:
            pynvml.nvmlEventSetFree(event_set)
        except pynvml.NVMLError:
            return  # it goes with the driver then
