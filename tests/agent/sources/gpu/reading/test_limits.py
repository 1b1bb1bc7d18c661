"""Numbers of the driver become base units, or nothing."""

from __future__ import annotations

import math

import pytest

from rankwatch_agent.sources.gpu.reading import limits
from rankwatch_agent.sources.gpu.reading.limits import Unit

_UNITS = [each for each in vars(limits).values() if isinstance(each, Unit)]


@pytest.mark.parametrize(
    ("unit", "raw", "base"),
    [
        (limits.PERCENT, 0, 0.0),
        (limits.PERCENT, 100, 1.0),
        (limits.MILLIWATTS, 412_345, 412.345),
        (limits.MILLIJOULES, 5_000_000_123, 5_000_000.123),
        (limits.MEGAHERTZ, 1980, 1.98e9),
        (limits.NANOSECONDS, 1_500_000_000, 1.5),
        (limits.KIBIBYTES, 3, 3072.0),
        (limits.CELSIUS, -7, -7.0),
    ],
)
def test_a_value_is_scaled_without_rounding(unit: Unit, raw: int, base: float) -> None:
    """412345 mW are 412.345 W, not 412.34500000000003."""
    assert unit.base(raw) == base


@pytest.mark.parametrize("unit", _UNITS)
@pytest.mark.parametrize("raw", [2**32 - 1, 2**64 - 1, 9223372036854775792, math.nan, math.inf, -(10**30)])
def test_a_sentinel_is_no_value_in_any_unit(unit: Unit, raw: float) -> None:
    """4294967295 and 9223372036854775792 have been exported as measurements by other tools."""
    assert unit.base(raw) is None


@pytest.mark.parametrize(
    ("unit", "raw"),
    [
        (limits.PERCENT, 101),
        (limits.CELSIUS, 201),
        (limits.CELSIUS, -51),
        (limits.MILLIWATTS, 5_000_001),
        (limits.MEMORY_BYTES, (16 << 40) + 1),
        (limits.MEGAHERTZ, 10_001),
        (limits.FLAG, 2),
    ],
)
def test_a_value_outside_its_unit_is_no_value(unit: Unit, raw: int) -> None:
    """Just past the limit."""
    assert unit.base(raw) is None
