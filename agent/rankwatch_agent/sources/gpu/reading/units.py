"""Units of the driver's numbers: how they become values in base units, and which values are plausible."""

from __future__ import annotations

from typing import NamedTuple

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
        """The value in base units; None where it is a sentinel, not a number, or out of range."""
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
