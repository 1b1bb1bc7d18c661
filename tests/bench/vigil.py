"""Exporters watched side by side over a long time: what they hold, and whether it grows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from .node_load import Watched
from .process_usage import Footprint, footprint
from .scrape import Scrape, scrape

SCRAPE_INTERVAL_SECONDS = 15.0
"""What the README tells Prometheus to use; its own default is a minute."""
LATENCY_SCRAPES = 100
LATENCY_PAUSE_SECONDS = 0.25


@dataclass
class Vigil:
    """One exporter over the window."""

    footprints: list[Footprint] = field(default_factory=list)
    """One after each scrape, the first at the beginning of the window."""
    scrape_seconds: list[float] = field(default_factory=list)
    """Of the scrapes made after the window, in quick succession."""
    last: Scrape | None = None
    seconds: float = 0.0
    """Length of the window."""

    def cores(self) -> float:
        """CPU time per second over the window: 0.01 is one percent of one core."""
        return (self.footprints[-1].cpu_seconds - self.footprints[0].cpu_seconds) / self.seconds

    def growth(self, what: str) -> float:
        """Median of the last third of the window less that of the first third."""
        values = [float(getattr(each, what)) for each in self.footprints]
        third = max(1, len(values) // 3)
        return median(values[-third:]) - median(values[:third])


def keep_vigil(
    exporters: Mapping[str, Watched], *, warmup_seconds: float, window_seconds: float
) -> dict[str, Vigil]:
    """Scrape all of them every 15 s through the window, then time scrapes; raises BenchError."""
    _scrape_until(exporters, time.monotonic() + warmup_seconds)
    vigils = {name: Vigil() for name in exporters}
    began = time.monotonic()
    _look(exporters, vigils)
    for number in range(1, round(window_seconds / SCRAPE_INTERVAL_SECONDS) + 1):
        time.sleep(max(0.0, began + number * SCRAPE_INTERVAL_SECONDS - time.monotonic()))
        for watched in exporters.values():
            scrape(watched.address)
        _look(exporters, vigils)
    for vigil in vigils.values():
        vigil.seconds = time.monotonic() - began
    for name, watched in exporters.items():
        for _ in range(LATENCY_SCRAPES):
            time.sleep(LATENCY_PAUSE_SECONDS)
            vigils[name].last = made = scrape(watched.address)
            vigils[name].scrape_seconds.append(made.seconds)
    return vigils


def _scrape_until(exporters: Mapping[str, Watched], end: float) -> None:
    while time.monotonic() < end:
        for watched in exporters.values():
            scrape(watched.address)
        time.sleep(min(1.0, max(0.0, end - time.monotonic())))


def _look(exporters: Mapping[str, Watched], vigils: Mapping[str, Vigil]) -> None:
    for name, watched in exporters.items():
        vigils[name].footprints.append(footprint(watched.pid))
