"""Which GPUs the driver shows now, and which of those seen before are lost."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from rankwatch_agent.sources.gpu.reading.device import Device
from rankwatch_agent.sources.gpu.reading.features import DRIVER_GONE, DriverError, describe
from rankwatch_agent.sources.gpu.reading.gpm import Gpm
from rankwatch_agent.sources.gpu.reading.identity import read_identity
from rankwatch_agent.sources.gpu.reading.topics import GpuReader

_MOST_GPUS = 64
_MOST_KNOWN = 256
"""GPUs that are remembered, lost ones among them."""
_VANISHED = "the driver does not show it any more"


class GpuTable:
    """All GPUs seen since the worker started, by UUID: handles and numbers change, a UUID does not."""

    def __init__(self, gpm: Gpm) -> None:
        self._gpm = gpm
        self._readers: dict[str, GpuReader] = {}
        self._by_handle: dict[int, GpuReader] = {}
        self.rejected: dict[str, int] = {}
        """Values that could not be true, by feature."""
        self.warnings: list[str] = []
        """Of the last enumeration."""

    def readers(self) -> list[GpuReader]:
        """In the order of their numbers."""
        return sorted(self._readers.values(), key=lambda reader: reader.device.index)

    def detach(self) -> None:
        """The driver is shut down: handles are of no use any more."""
        self._by_handle.clear()

    def enumerate(self) -> dict[str, str]:
        """UUIDs of GPUs that the driver does not show, and why. Raises DriverError."""
        self.warnings = []
        shown: set[str] = set()
        reasons: dict[int, str] = {}
        for index in range(min(_count(), _MOST_GPUS)):
            try:
                reader = self._at(index)
            except (pynvml.NVMLError, UnicodeDecodeError) as error:
                reasons[index] = _reason(error)
                continue
            reader.device.index = index
            shown.add(reader.device.uuid)
        missing = {}
        for uuid, reader in self._readers.items():
            if uuid not in shown:
                missing[uuid] = reasons.pop(reader.device.index, _VANISHED)
        for index, reason in reasons.items():
            self.warnings.append(f"GPU number {index} does not tell what it is: {reason}")
        self._limit(missing)
        return missing

    def _at(self, index: int) -> GpuReader:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        address = handle_address(handle)
        reader = self._by_handle.get(address)
        if reader is None:
            identity = read_identity(handle)
            reader = self._readers.get(identity.uuid)
            if reader is None:
                reader = GpuReader(Device(identity, self.rejected), self._gpm)
                self._readers[identity.uuid] = reader
            reader.device.handle = handle
            reader.device.tells_xids = tells_xids(handle)
            features = reader.device.features
            (features.answered if reader.device.tells_xids else features.refused)("xid_events")
            self._by_handle[address] = reader
        return reader

    def _limit(self, missing: dict[str, str]) -> None:
        for uuid in list(missing)[: max(0, len(self._readers) - _MOST_KNOWN)]:
            del self._readers[uuid], missing[uuid]


def handle_address(handle: Any) -> int:
    """A handle as a number: what an event carries is compared with it."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def tells_xids(handle: object) -> bool:
    """Whether XID errors of this GPU can be waited for."""
    try:
        types = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
    except pynvml.NVMLError:
        return False
    return bool(types & pynvml.nvmlEventTypeXidCriticalError)


def _count() -> int:
    try:
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        raise DriverError(f"could not count the GPUs: {describe(error.value)}", code=error.value) from None


def _reason(error: Exception) -> str:
    if isinstance(error, pynvml.NVMLError):
        if error.value in DRIVER_GONE:
            raise DriverError(describe(error.value), code=error.value) from None
        return describe(error.value)
    return "its names are no text"
