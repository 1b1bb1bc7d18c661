"""The GPUs of the node: which ones the driver shows, which are lost, and everything that is read of each."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pynvml

from rankwatch.conventions.metrics import metric
from rankwatch_agent.sources.gpu.inventory import normalise_bus_id
from rankwatch_agent.sources.gpu.protocol import Gpu, Sample
from rankwatch_agent.sources.gpu.reading import board, links, memory_and_ecc, mig, power_and_clocks
from rankwatch_agent.sources.gpu.reading.activity import Activity, Gpm
from rankwatch_agent.sources.gpu.reading.device import (
    DRIVER_GONE,
    Device,
    DriverError,
    FieldKey,
    GpuLostError,
    Identity,
    Seldom,
    describe,
)
from rankwatch_agent.sources.gpu.reading.fields import FieldReader

MAX_GPUS = 64
"""GPUs read of one node."""
MAX_KNOWN_GPUS = 256
"""GPUs remembered, including lost ones."""
_VANISHED = "the driver does not show it any more"

_UP = metric("rankwatch_gpu_up").name
_INFO = metric("rankwatch_gpu_info").name
_ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "ada",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "blackwell",
    pynvml.NVML_DEVICE_ARCH_RUBIN: "rubin",
}
_UNKNOWN = "unknown"
_NO_MINOR_NUMBER = -1

_FIELDS: dict[FieldKey, str] = {
    **power_and_clocks.FIELDS,
    **links.FIELDS,
    **memory_and_ecc.FIELDS,
    **board.FIELDS,
}

_T = TypeVar("_T")


class GpuTable:
    """All GPUs seen since the worker started, by UUID: handles and numbers change, a UUID does not."""

    def __init__(self, gpm: Gpm, *, nvlink_per_link: bool = False) -> None:
        self._gpm = gpm
        self._nvlink_per_link = nvlink_per_link
        self._readers: dict[str, GpuReader] = {}
        self._by_handle: dict[int, GpuReader] = {}
        self.rejected: dict[str, int] = {}
        """Feature -> implausible values."""
        self.warnings: list[str] = []
        """Of the last enumeration."""
        self.unidentified = 0
        """GPUs of the last enumeration that were never seen and cannot be identified."""

    def readers(self) -> list[GpuReader]:
        """Sorted by NVML's number."""
        return sorted(self._readers.values(), key=lambda reader: reader.device.index)

    def detach(self) -> None:
        """Forget all handles, because the driver is shut down."""
        self._by_handle.clear()

    def enumerate(self) -> dict[str, str]:
        """Find all GPUs; UUID -> reason for those that the driver does not show. Raises DriverError."""
        self.warnings = []
        shown: set[str] = set()
        reasons: dict[int, str] = {}
        for index in range(min(_count(), MAX_GPUS)):
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
        self.unidentified = len(reasons)
        for index, reason in reasons.items():
            self.warnings.append(f"GPU number {index} cannot be identified: {reason}")
        self._limit(missing)
        return missing

    def _at(self, index: int) -> GpuReader:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        address = handle_address(handle)
        reader = self._by_handle.get(address)
        if reader is None:
            identity = _read_identity(handle)
            reader = self._readers.get(identity.uuid)
            if reader is None:
                nvlink = links.Nvlink(per_link=self._nvlink_per_link)
                reader = GpuReader(Device(identity, self.rejected), self._gpm, nvlink)
                self._readers[identity.uuid] = reader
            device = reader.device
            device.handle = handle
            device.delivers_xids = _delivers_xids(handle)
            features = device.features
            (features.set_supported if device.delivers_xids else features.set_unsupported)("xid_events")
            self._by_handle[address] = reader
        return reader

    def _limit(self, missing: dict[str, str]) -> None:
        for uuid in list(missing)[: max(0, len(self._readers) - MAX_KNOWN_GPUS)]:
            del self._readers[uuid], missing[uuid]


class GpuReader:
    """Reads one GPU. It lives as long as the worker, through losses of the GPU and reloads of the driver."""

    def __init__(self, device: Device, gpm: Gpm, nvlink: links.Nvlink) -> None:
        self.device = device
        self._gpm = gpm
        self._nvlink = nvlink
        self._chip_to_chip = links.ChipToChip()
        self._field_reader = FieldReader()
        self._fields: dict[FieldKey, str] = {}
        self._fields_for: tuple[object, ...] = ()
        self._seldom = (Seldom(memory_and_ecc.read_reserve), Seldom(board.read_settings))
        self._topics: tuple[Callable[[Device], Iterable[Sample]], ...] = (
            _identity_samples,
            Activity(gpm).read,
            memory_and_ecc.read_memory,
            memory_and_ecc.read_processes,
            memory_and_ecc.read_ecc,
            memory_and_ecc.read_repairs,
            power_and_clocks.read_power,
            power_and_clocks.read_temperature,
            power_and_clocks.read_clocks,
            power_and_clocks.read_throttling,
            board.read_state,
            links.read_pcie,
            self._nvlink.read,
            self._chip_to_chip.read,
            links.read_fabric,
            mig.Mig(gpm).read,
            *(each.read for each in self._seldom),
            memory_and_ecc.read_recovery,  # last: it knows whether a call was refused
        )

    def read(self, driver_version: tuple[int, ...]) -> Gpu:
        """Read every topic; a GPU that is lost meanwhile comes back as lost. Raises DriverError."""
        gpu = self.device
        gpu.start_reading()
        gpu.driver_version = driver_version
        try:
            mig.read_mode(gpu)
            self._nvlink.find_active(gpu)
            self._field_reader.read(gpu, self._wanted_fields(driver_version))
            samples = tuple(sample for topic in self._topics for sample in topic(gpu))
        except GpuLostError as error:
            return self.lost(str(error))
        return self._gpu(samples)

    def lost(self, reason: str) -> Gpu:
        """The lost GPU: its identity, and the reset that it waits for."""
        gpu = self.device
        gpu.lost_reason = reason
        self._gpm.forget(gpu.uuid)
        for each in self._seldom:
            each.forget()
        waits_for_reset = reason == describe(pynvml.NVML_ERROR_RESET_REQUIRED)
        reset = memory_and_ecc.read_reset(gpu) if waits_for_reset else ()
        return self._gpu((*_identity_samples(gpu), *reset))

    def _gpu(self, samples: tuple[Sample, ...]) -> Gpu:
        gpu = self.device
        up = not gpu.lost_reason
        return Gpu(
            uuid=gpu.uuid,
            pci_bus_id=gpu.identity.pci_bus_id,
            index=gpu.index,
            minor_number=gpu.identity.minor_number,
            model=gpu.identity.model,
            up=up,
            lost_reason=gpu.lost_reason,
            mig_uuids=gpu.mig_uuids if up else (),
            pids=gpu.pids if up else (),
            samples=samples,
            unsupported=gpu.features.unsupported(),
            supported=gpu.features.supported(),
        )

    def _wanted_fields(self, driver_version: tuple[int, ...]) -> dict[FieldKey, str]:
        wanted_for = (driver_version, self.device.links, self._chip_to_chip.links)
        if wanted_for != self._fields_for:
            slowdowns = dict.fromkeys(
                power_and_clocks.slowdown_fields(driver_version), "throttle_time_by_slowdown"
            )
            of_links = {**links.nvlink_fields(self.device.links), **self._chip_to_chip.fields()}
            self._fields = {**_FIELDS, **slowdowns, **of_links}
            self._fields_for = wanted_for
        return self._fields


def handle_address(handle: Any) -> int:
    """A handle as a number, for the comparison with the handle in an event."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _identity_samples(gpu: Device) -> Iterable[Sample]:
    """Up or lost, and the names: the only samples that a lost GPU keeps."""
    identity = gpu.identity
    yield gpu.sample(_UP, 0.0 if gpu.lost_reason else 1.0)
    yield gpu.sample(
        _INFO,
        1.0,
        str(gpu.index),
        identity.pci_bus_id,
        identity.model,
        identity.architecture,
        identity.serial,
    )


def _read_identity(handle: object) -> Identity:
    """Raises pynvml.NVMLError or UnicodeDecodeError where UUID or address cannot be read."""
    return Identity(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        pci_bus_id=normalise_bus_id(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        minor_number=_optional(pynvml.nvmlDeviceGetMinorNumber, handle, _NO_MINOR_NUMBER),
        model=_optional(pynvml.nvmlDeviceGetName, handle, _UNKNOWN),
        architecture=_ARCHITECTURES.get(_optional(pynvml.nvmlDeviceGetArchitecture, handle, -1), _UNKNOWN),
        serial=_optional(pynvml.nvmlDeviceGetSerial, handle, ""),
    )


def _optional(function: Callable[[object], _T], handle: object, default: _T) -> _T:
    try:
        return function(handle)
    except UnicodeDecodeError:
        return default
    except pynvml.NVMLError as error:
        if error.value not in (*DRIVER_GONE, pynvml.NVML_ERROR_GPU_IS_LOST):
            return default
        raise


def _delivers_xids(handle: object) -> bool:
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
    """Why a GPU cannot be identified; raises DriverError where the driver is gone."""
    if isinstance(error, pynvml.NVMLError):
        if error.value in DRIVER_GONE:
            raise DriverError(describe(error.value), code=error.value) from None
        return describe(error.value)
    return "its names are not text"
