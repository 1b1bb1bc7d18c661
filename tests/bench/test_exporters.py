"""Figures of an exporter over a long window."""

from __future__ import annotations

from bench.exporters import Window
from bench.process_usage import Footprint


def _held(size: int) -> Footprint:
    return Footprint(0.0, size, size, 1, 1, 1)


def test_growth() -> None:
    """Growth is between the medians of the first and the last third: a spike is none, a slope is."""
    level = Window(footprints=[_held(size) for size in (5, 5, 5, 5, 90, 5, 5, 5, 5)])
    slope = Window(footprints=[_held(size) for size in range(9)])
    assert level.growth("proportional_bytes") == 0
    assert slope.growth("proportional_bytes") == 6


def test_cores() -> None:
    """CPU time from before the window does not count."""
    used = [Footprint(cpu, 0, 0, 1, 1, 1) for cpu in (10.0, 10.5, 11.0)]
    assert Window(footprints=used, seconds=50.0).cores() == 0.02
