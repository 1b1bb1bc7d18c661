"""Numbers of the driver become base units, or nothing."""

from __future__ import annotations

import math

import pytest

from rankwatch_agent.sources.gpu.reading import device
from rankwatch_agent.sources.gpu.reading.device import Unit

_UNITS = [each for each in vars(device).values() if isinstance(each, Unit)]


@pytest.mark.parametrize(
    ("unit", "raw", "base"),
    [
        (device.PERCENT, 0, 0.0),
        (device.PERCENT, 100, 1.0),
        (device.MILLIWATTS, 412_345, 412.345),
        (device.MILLIJOULES, 5_000_000_123, 5_000_000.123),
        (device.MEGAHERTZ, 1980, 1.98e9),
        (device.NANOSECONDS, 1_500_000_000, 1.5),
        (device.KIBIBYTES, 3, 3072.0),
        (device.CELSIUS, -7, -7.0),
    ],
)
def test_scale(unit: Unit, raw: int, base: float) -> None:
    """412345 mW are 412.345 W, not 412.34500000000003."""
    assert unit.convert(raw) == base


@pytest.mark.parametrize("unit", _UNITS)
@pytest.mark.parametrize("raw", [2**32 - 1, 2**64 - 1, 9223372036854775792, math.nan, math.inf, -(10**30)])
def test_sentinels(unit: Unit, raw: float) -> None:
    """Other tools have exported 4294967295 and 9223372036854775792 as measurements."""
    assert unit.convert(raw) is None


@pytest.mark.parametrize(
    ("unit", "raw"),
    [
        (device.PERCENT, 101),
        (device.CELSIUS, 201),
        (device.CELSIUS, -51),
        (device.MILLIWATTS, 5_000_001),
        (device.MEMORY_BYTES, (16 << 40) + 1),
        (device.MEGAHERTZ, 10_001),
        (device.FLAG, 2),
    ],
)
def test_out_of_range(unit: Unit, raw: int) -> None:
    """Just past the limit."""
    assert unit.convert(raw) is None
