"""One GPU in the worker: its handle, the features it has, and the one way to query the driver about it.

A feature is one question to the driver: power, memory_temperature, ... A feature that a GPU lacks is queried
again only now and then, so that it costs nothing.

Units say how the driver's numbers become values in base units, and which values are plausible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import pynvml

from rankwatch_agent.sources.gpu.protocol import Sample

RETRY_READINGS = 60
"""Readings until an unsupported feature is queried again: a new mode or driver may have brought it."""

UNSUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)
DRIVER_GONE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)

FieldKey = tuple[int, int]
"""Id of a field (NVML_FI_DEV_...) and its scope: the number of a link, 0 for the GPU."""

_T = TypeVar("_T")


class ReadingError(Exception):
    """Base of the errors that end a reading early.

    ReadingError
    ├── GpuLostError      one GPU is lost; the others go on
    └── DriverError       the driver as a whole cannot be used
    """


class GpuLostError(ReadingError):
    """The GPU is off the bus."""


class DriverError(ReadingError):
    """The driver cannot be used; `absent` where there is none."""

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        """NVML's error, None where the error is not one of NVML's."""
        self.absent = code in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


def describe(code: int) -> str:
    """Return the driver's text for one of its errors."""
    try:
        return str(pynvml.NVMLError(code))
    except UnicodeDecodeError:
        return f"NVML error {code}"


class Features:
    """The features that one GPU has and lacks. Used by one thread."""

    def __init__(self) -> None:
        self._reading = 0
        self._supported: set[str] = set()
        self._retry_at: dict[str, int] = {}

    def start_reading(self) -> bool:
        """Count one more reading; True in the readings that query everything again."""
        self._reading += 1
        return self._reading % RETRY_READINGS == 0

    def wanted(self, feature: str) -> bool:
        """Return True if a query is worth its call now."""
        return self._retry_at.get(feature, 0) <= self._reading

    def set_supported(self, feature: str) -> None:
        self._supported.add(feature)
        self._retry_at.pop(feature, None)

    def set_unsupported(self, feature: str) -> None:
        """Note that the GPU lacks the feature, according to the driver."""
        self._supported.discard(feature)
        self._retry_at[feature] = self._reading + RETRY_READINGS

    def supported(self) -> tuple[str, ...]:
        """Return the supported ones sorted, without names that begin with _: each of these is one of several
        calls that give one feature."""
        return tuple(sorted(name for name in self._supported if not name.startswith("_")))

    def unsupported(self) -> tuple[str, ...]:
        """Return the unsupported ones sorted, without names that begin with _."""
        return tuple(sorted(name for name in self._retry_at if not name.startswith("_")))


class Identity(NamedTuple):
    """The names of a GPU. They are read once: a lost GPU does not answer even for its UUID."""

    uuid: str
    pci_bus_id: str
    minor_number: int
    """-1 where the driver does not know it."""
    model: str
    architecture: str
    serial: str
    """Empty where the driver does not know it."""


class Seldom:
    """A topic that hardly ever changes: read at first, and when a GPU's unsupported features are queried."""

    def __init__(self, topic: Callable[[Device], Iterable[Sample]]) -> None:
        self._topic = topic
        self._samples: tuple[Sample, ...] | None = None

    def read(self, gpu: Device) -> Iterable[Sample]:
        """Return the samples of the last time that it was read without a warning."""
        if self._samples is not None and not gpu.query_all:
            return self._samples
        warnings = len(gpu.warnings)
        samples = tuple(self._topic(gpu))
        self._samples = samples if len(gpu.warnings) == warnings else None
        return samples

    def forget(self) -> None:
        """Read it again next time: the GPU was away."""
        self._samples = None


class Device:
    """A GPU that was seen, and what its topics share during one reading."""

    def __init__(self, identity: Identity, rejected: dict[str, int]) -> None:
        """Count implausible values in `rejected` by feature, over all GPUs."""
        self.identity = identity
        self.features = Features()
        self.handle: Any = None  # an opaque pointer of the driver
        self.index = 0
        self.lost_reason = ""
        self.reset_required = False
        self.driver_version: tuple[int, ...] = ()
        self.delivers_xids = False
        self._rejected = rejected
        self.start_reading()

    @property
    def uuid(self) -> str:
        """The value of the label `gpu`."""
        return self.identity.uuid

    def start_reading(self) -> None:
        """Clear what the last reading found."""
        self.lost_reason = ""
        self.reset_required = False
        """Whether the driver refuses calls until the GPU is reset."""
        self.warnings: list[str] = []
        self.query_all = self.features.start_reading()
        """Whether unsupported features are queried again in this reading."""
        self.fields: dict[FieldKey, float] = {}
        self.links: tuple[int, ...] = ()
        """Active NVLinks."""
        self.mig_enabled = False
        self.mig_uuids: tuple[str, ...] = ()
        self.pids: tuple[int, ...] = ()

    def query(self, feature: str, function: Callable[..., _T], *arguments: object) -> _T | None:
        """Return what the driver answers about this GPU; None where it gives no answer.

        Raises GpuLostError, DriverError. Every other failure costs only this feature.
        """
        return self.query_part(self.handle, feature, function, *arguments)

    def query_part(
        self, handle: object, feature: str, function: Callable[..., _T], *arguments: object
    ) -> _T | None:
        """Query a part of this GPU such as a MIG instance, as `query` does the GPU."""
        if not self.features.wanted(feature):
            return None
        try:
            answer = function(handle, *arguments)
        except pynvml.NVMLError as error:
            self.handle_error(feature, error.value)
            return None
        except UnicodeDecodeError:
            self.reject(feature)
            return None
        self.features.set_supported(feature)
        return answer

    def query_first(self, feature: str, *calls: tuple[Any, ...]) -> Any:
        """Return the answer to the first (function, arguments...) that this driver has; None without any."""
        names = [f"_{function.__name__}" for function, *_ in calls]
        for name, (function, *arguments) in zip(names, calls, strict=True):
            answer = self.query(name, function, *arguments)
            if answer is not None:
                self.features.set_supported(feature)
                return answer
        if not any(self.features.wanted(name) for name in names):
            self.features.set_unsupported(feature)
        return None

    def handle_error(self, feature: str, code: int) -> None:
        """Record an error of the driver; raises GpuLostError, DriverError."""
        if code == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise GpuLostError(describe(code))
        if code in DRIVER_GONE:
            raise DriverError(describe(code), code=code)
        if code == pynvml.NVML_ERROR_RESET_REQUIRED:
            self.reset_required = True
            self.warn(describe(code))  # once for all that it refuses
        elif code in UNSUPPORTED:
            self.features.set_unsupported(feature)
        else:
            if code == pynvml.NVML_ERROR_NO_PERMISSION:
                self.features.set_unsupported(feature)  # an unprivileged agent stays one
            self.warn(f"could not read {feature.lstrip('_')}: {describe(code)}")

    def warn(self, text: str) -> None:
        """Add a warning for the log, prefixed with the GPU."""
        warning = f"GPU {self.uuid}: {text}"
        if warning not in self.warnings:  # 18 links may fail in the same way
            self.warnings.append(warning)

    def reject(self, feature: str) -> None:
        """Count an implausible value."""
        self._rejected[feature] = self._rejected.get(feature, 0) + 1

    def convert(self, feature: str, raw: float, unit: Unit) -> float | None:
        """Return the value in base units; None, and counted, where it is implausible."""
        value = unit.convert(raw)
        if value is None:
            self.reject(feature)
        return value

    def sample(self, name: str, value: float, *labels: str) -> Sample:
        return Sample(name, (self.identity.uuid, *labels), value)

    def value(self, name: str, feature: str, raw: float | None, unit: Unit, *labels: str) -> Iterable[Sample]:
        """Return the sample of a raw value; nothing where it is None or implausible."""
        if raw is None:
            return ()
        value = self.convert(feature, raw, unit)
        return () if value is None else (self.sample(name, value, *labels),)

    def field(self, name: str, feature: str, key: FieldKey, unit: Unit, *labels: str) -> Iterable[Sample]:
        """Return the sample of a field of this reading; nothing where the driver lacks it."""
        return self.value(name, feature, self.fields.get(key), unit, *labels)


SENTINELS = frozenset(
    {
        0xFFFFFFFF,  # NVML_VALUE_NOT_AVAILABLE of 32 bits
        0xFFFFFFFFFFFFFFFF,  # of 64 bits
        0x7FFFFFF0,  # DCGM's "blank" of 32 bits, which virtual GPUs pass on
        0x7FFFFFFFFFFFFFF0,  # of 64 bits
    }
)
"""Numbers that mean "not available"; other tools have exported them as measurements."""


class Unit(NamedTuple):
    """A unit of the driver. A value outside `low` .. `high` (in base units) is no measurement."""

    numerator: float
    denominator: float
    """Base value = raw value * numerator / denominator; the division keeps 412.345 W exact."""
    low: float
    high: float

    def convert(self, raw: float) -> float | None:
        """Return the value in base units; None where it is a sentinel, not a number, or out of range."""
        if raw in SENTINELS:
            return None
        value = raw * self.numerator / self.denominator
        return value if self.low <= value <= self.high else None  # a NaN fails both


_YEAR_SECONDS = 366 * 86400.0
_WATTS = 5000.0
_BYTES = 16.0 * (1 << 40)
_COUNTER = float(1 << 62)

PERCENT = Unit(1, 100, 0, 1)
GPM_PERCENT = Unit(1, 100, 0, 1.01)
"""GPM computes shares from two samples; under full load the result can slightly exceed 100."""
CELSIUS = Unit(1, 1, -50, 200)
MILLIWATTS = Unit(1, 1000, 0, _WATTS)
MILLIJOULES = Unit(1, 1000, 0, _WATTS * 20 * _YEAR_SECONDS)
MEGAHERTZ = Unit(1e6, 1, 0, 10e9)
MEMORY_BYTES = Unit(1, 1, 0, _BYTES)
NANOSECONDS = Unit(1, 1_000_000_000, 0, 20 * _YEAR_SECONDS)
KIBIBYTES = Unit(1024, 1, 0, _COUNTER)
COUNTER_BYTES = Unit(1, 1, 0, _COUNTER)
KILOBYTES_PER_SECOND = Unit(1000, 1, 0, 1e12)
MEBIBYTES_PER_SECOND = Unit(1 << 20, 1, 0, 1e12)
EVENTS = Unit(1, 1, 0, _COUNTER)
ROWS = Unit(1, 1, 0, 1 << 24)
FLAG = Unit(1, 1, 0, 1)
FAN_PERCENT = Unit(1, 100, 0, 2)
"""NVML: the share of the noise tolerance, which may exceed 100 %."""
PERFORMANCE_STATE = Unit(1, 1, 0, 15)
MEGABYTES_PER_SECOND = Unit(1e6, 1, 0, 1e13)
LINKS = Unit(1, 1, 0, 256)
PCIE_GENERATION = Unit(1, 1, 1, 16)
PCIE_LANES = Unit(1, 1, 1, 64)
