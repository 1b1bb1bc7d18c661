"""Exporters under watch: their CPU, their memory and how long their scrapes take.

`watch` looks at one exporter each second for a short time, `watch_window` at several side by side
for a long one. The peer of the agent is node_exporter, as Debian ships it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from .process_usage import Footprint, Scrape, cpu_seconds, footprint, resident_bytes, scrape
from .processes import background, free_ports, wait_until
from .result import BenchError

NODE_EXPORTER = "prometheus-node-exporter"
"""Debian's package, and its program."""
WATCH_INTERVAL_SECONDS = 1.0
"""Fifteen times as often as the README advises."""
WINDOW_INTERVAL_SECONDS = 15.0
"""What the README tells Prometheus to use; its own default is a minute."""
LATENCY_SCRAPES = 100
LATENCY_PAUSE_SECONDS = 0.25


class Exporter(NamedTuple):
    """A running exporter: its process id, and HOST:PORT."""

    pid: int
    address: str


class Effort(NamedTuple):
    """How long `watch` takes."""

    warmup_seconds: float
    scrapes: int
    interval_seconds: float = WATCH_INTERVAL_SECONDS
    """From one scrape to the next."""


class Usage(NamedTuple):
    """What an exporter used while it was watched."""

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


@dataclass
class Window:
    """One exporter over a long window: what it held, and whether that grew."""

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


def watch(exporter: Exporter, effort: Effort) -> Usage:
    """Scrape an exporter for as long as `effort` says; raises BenchError if it does not answer.

    The last scrape of the warm-up is no sample: it makes the exporter create its series.
    """
    time.sleep(effort.warmup_seconds)
    last = first = scrape(exporter.address)
    began, used = time.monotonic(), cpu_seconds(exporter.pid)
    taken = []
    for number in range(1, effort.scrapes + 1):
        time.sleep(max(0.0, began + number * effort.interval_seconds - time.monotonic()))
        last = scrape(exporter.address)
        taken.append(last.seconds)
    cpu, seconds = cpu_seconds(exporter.pid) - used, time.monotonic() - began
    return Usage(seconds, cpu, *resident_bytes(exporter.pid), taken, first, last)


def watch_window(
    exporters: Mapping[str, Exporter], *, warmup_seconds: float, window_seconds: float
) -> dict[str, Window]:
    """Scrape all of them every 15 s through the window, then time scrapes; raises BenchError."""
    _warm_up(exporters, time.monotonic() + warmup_seconds)
    windows = {name: Window() for name in exporters}
    began = time.monotonic()
    _add_footprints(exporters, windows)
    for number in range(1, round(window_seconds / WINDOW_INTERVAL_SECONDS) + 1):
        time.sleep(max(0.0, began + number * WINDOW_INTERVAL_SECONDS - time.monotonic()))
        for exporter in exporters.values():
            scrape(exporter.address)
        _add_footprints(exporters, windows)
    for window in windows.values():
        window.seconds = time.monotonic() - began
    for name, exporter in exporters.items():
        for _ in range(LATENCY_SCRAPES):
            time.sleep(LATENCY_PAUSE_SECONDS)
            windows[name].last = made = scrape(exporter.address)
            windows[name].scrape_seconds.append(made.seconds)
    return windows


def _warm_up(exporters: Mapping[str, Exporter], end: float) -> None:
    while time.monotonic() < end:
        for exporter in exporters.values():
            scrape(exporter.address)
        time.sleep(min(1.0, max(0.0, end - time.monotonic())))


def _add_footprints(exporters: Mapping[str, Exporter], windows: Mapping[str, Window]) -> None:
    for name, exporter in exporters.items():
        windows[name].footprints.append(footprint(exporter.pid))


def node_exporter_installed() -> bool:
    """True if node_exporter can be measured here."""
    return shutil.which(NODE_EXPORTER) is not None


@contextmanager
def node_exporter(directory: Path) -> Iterator[Exporter]:
    """node_exporter with its default collectors on a free loopback port. Raises BenchError."""
    (port,) = free_ports(1)
    address, log = f"127.0.0.1:{port}", directory / "node-exporter.log"
    with background([NODE_EXPORTER, f"--web.listen-address={address}"], log) as process:
        wait_until(lambda: _answers(address), process, log, f"could not start {NODE_EXPORTER}")
        yield Exporter(process.pid, address)


def _answers(address: str) -> bool:
    try:
        scrape(address)
    except BenchError:
        return False
    return True
