"""One reading of the node: the driver, its GPUs, and the XID errors since the last reading."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pynvml

from rankwatch_agent.sources.gpu.protocol import Answer, Failure, Gpu, Reading, Sample, XidEvent
from rankwatch_agent.sources.gpu.reading.activity import Gpm
from rankwatch_agent.sources.gpu.reading.device import DriverError, describe
from rankwatch_agent.sources.gpu.reading.gpus import GpuTable, handle_address

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
        """Take the events since the last call, and warnings for the log."""
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
    """Return a new set of these GPUs; one that was just lost cannot be registered and is left out."""
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


_REINITIALISE_READINGS = 60
"""Readings with a lost GPU after which the driver is initialised again. Only that shows a GPU that was reset
or replaced (inferred: NVML lists the GPUs in nvmlInit)."""


class NodeReader:
    """Reads the node again and again. Used by one thread."""

    def __init__(
        self,
        *,
        library: Path | None = None,
        nvlink_per_link: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        event_wait_milliseconds: int = WAIT_MILLISECONDS,
    ) -> None:
        self._wall_clock = wall_clock
        self._event_wait_milliseconds = event_wait_milliseconds
        self._session = _DriverSession(library)
        self._gpm = Gpm(monotonic=monotonic)
        self._table = GpuTable(self._gpm, nvlink_per_link=nvlink_per_link)
        self._listener = self._new_listener()
        self._readings_with_loss = 0
        self._stuck = False

    @property
    def needs_new_process(self) -> bool:
        """Whether this process cannot go on: the driver was replaced, or a thread hangs in it."""
        return self._stuck or self._session.outdated

    def read(self) -> Answer:
        """Read everything the driver reports now; a Failure where it reports no GPU that is up."""
        try:
            self._session.open()
            gpus = self._read_gpus()
        except DriverError as error:
            events, _ = self._listener.take()
            self.close()
            return Answer(failure=Failure(message=str(error), absent=error.absent, xids=events))
        events, warnings = self._listener.take()
        if not any(gpu.up for gpu in gpus):
            self.close()  # nvmlInit looks again in the next reading
            message = "the driver answers but shows no GPU"
            return Answer(failure=Failure(message=message, xids=events, gpus=gpus))
        warnings += self._table.warnings
        warnings += [text for reader in self._table.readers() for text in reader.device.warnings]
        return Answer(
            reading=Reading(
                gpus=gpus,
                samples=tuple(self._samples(gpus)),
                xids=events,
                warnings=tuple(warnings),
                unidentified=self._table.unidentified,
            )
        )

    def close(self) -> None:
        """Shut the driver down, unless a thread hangs in it: then only the end of the process helps."""
        self._table.detach()
        self._readings_with_loss = 0
        if not self._listener.stop():
            self._stuck = True
            return
        self._listener = self._new_listener()
        if self._session.is_open:
            self._gpm.release()
            self._session.close()

    def _new_listener(self) -> XidListener:
        return XidListener(wait_milliseconds=self._event_wait_milliseconds, wall_clock=self._wall_clock)

    def _read_gpus(self) -> tuple[Gpu, ...]:
        if self._readings_with_loss >= _REINITIALISE_READINGS:
            self.close()
            self._session.open()
        missing = self._table.enumerate()
        gpus = tuple(
            reader.lost(missing[reader.device.uuid])
            if reader.device.uuid in missing
            else reader.read(self._session.driver_version)
            for reader in self._table.readers()
        )
        self._readings_with_loss = 0 if all(gpu.up for gpu in gpus) else self._readings_with_loss + 1
        devices = [reader.device for reader in self._table.readers()]
        self._listener.watch(
            {each.uuid: each.handle for each in devices if each.delivers_xids and not each.lost_reason}
        )
        return gpus

    def _samples(self, gpus: Iterable[Gpu]) -> Iterable[Sample]:
        yield Sample("rankwatch_gpu_driver_info", self._session.versions, 1.0)
        for feature, count in sorted(self._table.rejected.items()):
            yield Sample("rankwatch_gpu_readings_rejected_total", (feature,), count)
        for (model, feature), supported in sorted(_supported_by_model(gpus).items()):
            yield Sample("rankwatch_gpu_supported", (model, feature), float(supported))


def _supported_by_model(gpus: Iterable[Gpu]) -> dict[tuple[str, str], bool]:
    """Return (model, feature) -> whether every GPU of the model has it; a lost GPU counts by what it had."""
    found: dict[tuple[str, str], bool] = {}
    for gpu in gpus:
        for feature in gpu.supported:
            found.setdefault((gpu.model, feature), True)
        for feature in gpu.unsupported:
            found[gpu.model, feature] = False
    return found


class _DriverSession:
    """NVML from nvmlInit to nvmlShutdown, as often as the driver goes and comes back."""

    def __init__(self, library: Path | None) -> None:
        """Use `library` in place of libnvidia-ml.so.1 where the system's loader does not find it."""
        self._library = library
        self._preloaded: Any = None
        self._was_open = False
        self.is_open = False
        self.versions = ("", "", "")
        """Of the driver, NVML and CUDA; empty where the driver does not know them."""
        self.driver_version: tuple[int, ...] = ()
        """The same as numbers: (580, 95, 5); empty where the driver does not know it."""
        self.outdated = False
        """The driver was replaced under the library in this process: only a new process can use it."""

    def open(self) -> None:
        """Initialise the driver unless it is initialised; raises DriverError."""
        if self.is_open:
            return
        self._preload()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            code = error.value
            self.outdated = self._was_open and code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
            raise DriverError(f"could not initialise NVML: {describe(code)}", code=code) from None
        self.is_open = self._was_open = True
        self.versions = (
            _version(pynvml.nvmlSystemGetDriverVersion),
            _version(pynvml.nvmlSystemGetNVMLVersion),
            _cuda_version(),
        )
        self.driver_version = _numbers(self.versions[0])

    def close(self) -> None:
        """Shut down; the driver may be gone already."""
        if self.is_open:
            self.is_open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                return  # nothing is left to shut down

    def _preload(self) -> None:
        # pynvml knows only the name libnvidia-ml.so.1; the loader reuses a loaded library of that name
        if self._library is None or self._preloaded is not None:
            return
        try:
            self._preloaded = ctypes.CDLL(str(self._library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise DriverError(
                f"could not load {self._library}: {error}", code=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
            ) from None


def _version(function: Any) -> str:
    try:
        return str(function())
    except (pynvml.NVMLError, UnicodeDecodeError):
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    """Return 580.95.05 as (580, 95, 5); () for a version of another form."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdecimal() for part in parts) else ()


def _cuda_version() -> str:
    """Return the newest CUDA the driver supports: 12040 is 12.4 (nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR)."""
    try:
        version = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError:
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"
