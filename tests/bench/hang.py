"""A driver call that never returns, under the eyes of a scraper."""

from __future__ import annotations

import time
from typing import NamedTuple

from rankwatch.conventions import metric
from rankwatch_agent.runtime.config import DEFAULT_SCHEDULES
from support.gpu.nvml import FakeDriver

from .errors import BenchError
from .node_load import Watched
from .scrape import Scrape, scrape

INTERVAL_SECONDS = DEFAULT_SCHEDULES["gpu"].interval_seconds
SCRAPE_PAUSE_SECONDS = 0.25
_PATIENCE_INTERVALS = 6.0
_UNRESPONSIVE = metric("rankwatch_gpu_driver_unresponsive_total").name
_OF_THE_DRIVER = (
    "rankwatch_gpu_",  # all that NVML tells
    "rankwatch_collector_last_success",
)


class Hang(NamedTuple):
    """What a scraper saw of it."""

    intervals: float
    """From the first hung call being possible to its report, in intervals of the collector."""
    scrape_seconds: list[float]
    families_lost: frozenset[str]
    """Of other collectors, missing in any scrape meanwhile."""


def watch_hang(watched: Watched, driver: FakeDriver) -> Hang:
    """Let a call hang and scrape until it is reported; raises BenchError where it never is."""
    before = scrape(watched.address)
    others = _families(before)
    driver.hang("nvmlDeviceGetPowerUsage", 3)
    began = time.monotonic()
    taken: list[float] = []
    lost: set[str] = set()
    while True:
        seen = scrape(watched.address)
        taken.append(seen.seconds)
        lost |= others - _families(seen)
        intervals = (time.monotonic() - began) / INTERVAL_SECONDS
        if seen.total(_UNRESPONSIVE) > before.total(_UNRESPONSIVE):
            return Hang(intervals, taken, frozenset(lost))
        if intervals > _PATIENCE_INTERVALS:
            raise BenchError(f"a hung driver call was not reported within {intervals:.1f} intervals")
        time.sleep(SCRAPE_PAUSE_SECONDS)


def _families(seen: Scrape) -> set[str]:
    names = {line.partition("{")[0].partition(" ")[0] for line in seen.text.splitlines() if line[:1] != "#"}
    return {name for name in names if name and not name.startswith(_OF_THE_DRIVER)}
