"""Fields of a GPU (NVML_FI_DEV_...), all read in one call to the driver."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping, Sequence

import pynvml

from rankwatch_agent.sources.gpu.reading.device import UNSUPPORTED, Device, FieldKey

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
        """(key, type, error, raw value) of each field; raises pynvml.NVMLError where the whole call fails."""
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
    """The number in the 64 bits of a value, by its type; None where the type is unknown."""
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
    """A feature is supported if one of its fields answered, and unsupported if all were refused."""
    for feature in answered:
        gpu.features.set_supported(feature)
    for feature, codes in errors.items():
        if codes <= _REFUSED and feature not in answered:
            gpu.features.set_unsupported(feature)
        for code in sorted(codes - _REFUSED):
            gpu.handle_error(feature, code)
