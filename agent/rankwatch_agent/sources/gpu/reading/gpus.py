"""The GPUs of the node: which ones the driver shows, which are lost, and everything that is read of each.

Fields of a GPU (NVML_FI_DEV_...) are all read in one call to the driver.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pynvml

from rankwatch_agent.sources.gpu.inventory import normalise_bus_id
from rankwatch_agent.sources.gpu.protocol import Gpu, Sample
from rankwatch_agent.sources.gpu.reading import activity, board, links, memory_and_ecc
from rankwatch_agent.sources.gpu.reading.activity import Activity, Gpm
from rankwatch_agent.sources.gpu.reading.device import (
    DRIVER_GONE,
    UNSUPPORTED,
    Device,
    DriverError,
    FieldKey,
    GpuLostError,
    Identity,
    Seldom,
    describe,
)

MAX_GPUS = 64
"""GPUs read of one node."""
MAX_KNOWN_GPUS = 256
"""GPUs remembered, including lost ones."""
_VANISHED = "the driver does not show it any more"

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

_FIELDS: dict[FieldKey, str] = {
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
        """Return the readers sorted by NVML's number."""
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
        self._seldom = (Seldom(memory_and_ecc.read_reserve), Seldom(board.read_firmware))
        self._topics: tuple[Callable[[Device], Iterable[Sample]], ...] = (
            _identity_samples,
            Activity(gpm).read,
            memory_and_ecc.read_memory,
            memory_and_ecc.read_processes,
            memory_and_ecc.read_ecc,
            memory_and_ecc.read_repairs,
            board.read_power,
            board.read_temperature,
            board.read_clocks,
            board.read_throttling,
            board.read_state,
            links.read_pcie,
            self._nvlink.read,
            self._chip_to_chip.read,
            links.read_fabric,
            activity.Mig(gpm).read,
            *(each.read for each in self._seldom),
            memory_and_ecc.read_recovery,  # last: it knows whether a call was refused
        )

    def read(self, driver_version: tuple[int, ...]) -> Gpu:
        """Read every topic; a GPU that is lost meanwhile comes back as lost. Raises DriverError."""
        gpu = self.device
        gpu.start_reading()
        gpu.driver_version = driver_version
        try:
            activity.read_mode(gpu)
            self._nvlink.find_active(gpu)
            self._field_reader.read(gpu, self._wanted_fields(driver_version))
            samples = tuple(sample for topic in self._topics for sample in topic(gpu))
        except GpuLostError as error:
            return self.lost(str(error))
        return self._gpu(samples)

    def lost(self, reason: str) -> Gpu:
        """Return the lost GPU: its identity, and the reset that it waits for."""
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
            slowdowns = dict.fromkeys(board.slowdown_fields(driver_version), "throttle_time_by_slowdown")
            of_links = {**links.nvlink_fields(self.device.links), **self._chip_to_chip.fields()}
            self._fields = {**_FIELDS, **slowdowns, **of_links}
            self._fields_for = wanted_for
        return self._fields


def handle_address(handle: Any) -> int:
    """Return a handle as a number, for the comparison with the handle in an event."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _identity_samples(gpu: Device) -> Iterable[Sample]:
    """Yield up or lost, and the names: the only samples that a lost GPU keeps."""
    identity = gpu.identity
    yield gpu.sample("rankwatch_gpu_up", 0.0 if gpu.lost_reason else 1.0)
    yield gpu.sample(
        "rankwatch_gpu_info",
        1.0,
        str(gpu.index),
        identity.pci_bus_id,
        identity.model,
        identity.architecture,
        identity.serial,
    )


def _read_identity(handle: object) -> Identity:
    """Read the identity. Raises pynvml.NVMLError or UnicodeDecodeError where UUID or address cannot be
    read."""
    return Identity(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        pci_bus_id=normalise_bus_id(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        minor_number=_optional(pynvml.nvmlDeviceGetMinorNumber, handle, -1),
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
    """Return why a GPU cannot be identified; raises DriverError where the driver is gone."""
    if isinstance(error, pynvml.NVMLError):
        if error.value in DRIVER_GONE:
            raise DriverError(describe(error.value), code=error.value) from None
        return describe(error.value)
    return "its names are not text"


_CALL = "_nvmlDeviceGetFieldValues"
_REFUSED = UNSUPPORTED | {pynvml.NVML_ERROR_INVALID_ARGUMENT}
"""A driver older than a field answers that its id is an invalid argument."""
_MAX_PER_CALL = 256
_ENTRY = struct.Struct("@IIqqIIQ")
"""nvmlFieldValue_t: id, scope, timestamp, latency, type and error of the value, value. All entries are
unpacked at once, because pynvml's structures run Python code at each access."""


class FieldBatch:
    """A fixed list of fields. The array for the driver is built once."""

    def __init__(self, keys: Sequence[FieldKey]) -> None:
        self.keys = tuple(keys)
        blank = bytearray()
        for field, scope in keys:
            blank += _ENTRY.pack(field, scope, 0, 0, 0, pynvml.NVML_ERROR_NOT_SUPPORTED, 0)
        self._blank = bytes(blank)
        self._array = (pynvml.c_nvmlFieldValue_t * len(self.keys))()

    def read(self, handle: object) -> Iterator[tuple[FieldKey, int, int, int]]:
        """Yield (key, type, error, raw value) of each field; raises pynvml.NVMLError if the call fails."""
        function = getattr(pynvml.nvmlLib, "nvmlDeviceGetFieldValues", None)
        if function is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        ctypes.memmove(self._array, self._blank, len(self._blank))
        code = function(handle, ctypes.c_int32(len(self.keys)), self._array)
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)
        for key, (_, _, _, _, kind, error, raw) in zip(
            self.keys, _ENTRY.iter_unpack(self._array), strict=True
        ):
            yield key, kind, error, raw


def decode_value(kind: int, raw: int) -> float | None:
    """Return the number in the 64 bits of a value, by its type; None where the type is unknown."""
    if kind in (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG):
        return raw
    if kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return raw & 0xFFFFFFFF
    if kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT:
        return raw & 0xFFFF
    if kind == pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG:
        return raw - (1 << 64) if raw >> 63 else raw
    if kind == pynvml.NVML_VALUE_TYPE_SIGNED_INT:
        low = raw & 0xFFFFFFFF
        return low - (1 << 32) if low >> 31 else low
    if kind == pynvml.NVML_VALUE_TYPE_DOUBLE:
        (value,) = struct.unpack("@d", struct.pack("@Q", raw))
        return float(value)
    return None


class FieldReader:
    """Reads the fields of one GPU. A field that it lacks is read again only now and then."""

    def __init__(self) -> None:
        self._refused: set[FieldKey] = set()
        self._batches: list[FieldBatch] = []
        self._batched: tuple[FieldKey, ...] = ()

    def read(self, gpu: Device, features: Mapping[FieldKey, str]) -> None:
        """Fill `gpu.fields`; raises GpuLostError, DriverError.

        features: field -> the feature it belongs to.
        """
        if not gpu.features.wanted(_CALL):
            return
        if gpu.query_all:
            self._refused.clear()
        wanted = tuple(key for key in features if key not in self._refused)
        if wanted != self._batched:
            parts = range(0, len(wanted), _MAX_PER_CALL)
            self._batches = [FieldBatch(wanted[at : at + _MAX_PER_CALL]) for at in parts]
            self._batched = wanted
        answered: set[str] = set()
        errors: dict[str, set[int]] = {}
        for batch in self._batches:
            self._read_batch(gpu, batch, features, answered, errors)
        _set_features(gpu, answered, errors)

    def _read_batch(
        self,
        gpu: Device,
        batch: FieldBatch,
        features: Mapping[FieldKey, str],
        answered: set[str],
        errors: dict[str, set[int]],
    ) -> None:
        try:
            for key, kind, error, raw in batch.read(gpu.handle):
                if error:
                    errors.setdefault(features[key], set()).add(error)
                    if error in _REFUSED:
                        self._refused.add(key)
                    continue
                value = decode_value(kind, raw)
                answered.add(features[key])
                if value is None:
                    gpu.reject(features[key])
                else:
                    gpu.fields[key] = value
        except pynvml.NVMLError as error:
            gpu.handle_error(_CALL, error.value)


def _set_features(gpu: Device, answered: set[str], errors: Mapping[str, set[int]]) -> None:
    """Mark a feature as supported if one of its fields answered, as unsupported if all were refused."""
    for feature in answered:
        gpu.features.set_supported(feature)
    for feature, codes in errors.items():
        if codes <= _REFUSED and feature not in answered:
            gpu.features.set_unsupported(feature)
        for code in sorted(codes - _REFUSED):
            gpu.handle_error(feature, code)
