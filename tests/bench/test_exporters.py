"""What a long watch says about growth."""

from __future__ import annotations

from bench.exporters import Window
from bench.process_usage import Footprint


def _held(size: int) -> Footprint:
    return Footprint(0.0, size, size, 1, 1, 1)


def test_growth_is_between_the_first_and_the_last_third() -> None:
    """One spike is no growth; a slope is."""
    level = Window(footprints=[_held(size) for size in (5, 5, 5, 5, 90, 5, 5, 5, 5)])
    slope = Window(footprints=[_held(size) for size in range(9)])
    assert level.growth("proportional_bytes") == 0
    assert slope.growth("proportional_bytes") == 6


def test_cpu_is_that_of_the_window() -> None:
    """What was used before does not count."""
    used = [Footprint(cpu, 0, 0, 1, 1, 1) for cpu in (10.0, 10.5, 11.0)]
    assert Window(footprints=used, seconds=50.0).cores() == 0.02
