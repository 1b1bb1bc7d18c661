"""An exporter watched for a while: its CPU, its memory and how long its scrapes take."""

from __future__ import annotations

import time
from typing import NamedTuple

from .process_usage import cpu_seconds, resident_bytes
from .scrape import Scrape, scrape

SCRAPE_INTERVAL_SECONDS = 1.0
"""Fifteen times as often as Prometheus by default."""


class Effort(NamedTuple):
    """How long to watch."""

    warmup_seconds: float
    scrapes: int


class Usage(NamedTuple):
    """What an exporter used over the window."""

    seconds: float
    """Length of the window."""
    cpu_seconds: float
    resident_bytes: int
    peak_bytes: int
    scrape_seconds: list[float]
    first: Scrape
    last: Scrape

    def cores(self) -> float:
        """CPU time per second: 0.01 is one percent of one core."""
        return self.cpu_seconds / self.seconds


def watch(pid: int, address: str, effort: Effort) -> Usage:
    """Scrape an exporter once per second; raises BenchError where it does not answer.

    The last scrape of the warm-up is no sample: it makes the exporter meet its series.
    """
    time.sleep(effort.warmup_seconds)
    first = scrape(address)
    began, used = time.monotonic(), cpu_seconds(pid)
    last = first
    taken = []
    for number in range(1, effort.scrapes + 1):
        time.sleep(max(0.0, began + number * SCRAPE_INTERVAL_SECONDS - time.monotonic()))
        last = scrape(address)
        taken.append(last.seconds)
    cpu, seconds = cpu_seconds(pid) - used, time.monotonic() - began
    return Usage(seconds, cpu, *resident_bytes(pid), taken, first, last)
