"""Exporters under watch: their CPU, their memory and how long their scrapes take.

The peer of the agent is node_exporter, as Debian ships it.
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

from .process_usage import Footprint, Scrape, footprint, mib, ms, scrape
from .processes import background, free_ports, wait_until
from .result import BenchError, Row, limited, quantile

NODE_EXPORTER = "prometheus-node-exporter"
"""Debian's package, and its program."""
WINDOW_INTERVAL_SECONDS = 15.0
"""What the README tells Prometheus to use; its own default is a minute."""
LATENCY_SCRAPES = 100
LATENCY_PAUSE_SECONDS = 0.25


class Exporter(NamedTuple):
    """A running exporter: its process id, and HOST:PORT."""

    pid: int
    address: str


@dataclass
class Window:
    """One exporter over a window: what it held, and whether that grew."""

    first: Scrape
    last: Scrape
    """The first and the last scrape of the window."""
    footprints: list[Footprint] = field(default_factory=list)
    """One after each scrape."""
    scrape_seconds: list[float] = field(default_factory=list)
    """Of the scrapes made after the window, in quick succession."""
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

    def as_json(self) -> dict[str, object]:
        """All samples."""
        return {
            "window_seconds": self.seconds,
            "footprints": [each._asdict() for each in self.footprints],
            "scrape_seconds": self.scrape_seconds,
        }


class Limits(NamedTuple):
    """What an exporter may take."""

    cores: float
    resident_bytes: float
    scrape_seconds: float
    """Of the 99th percentile."""


def usage_rows(window: Window, limits: Limits) -> list[Row]:
    """CPU, memory and scrapes of an exporter with its children."""
    resident, proportional = (
        max(getattr(each, what) for each in window.footprints)
        for what in ("resident_bytes", "proportional_bytes")
    )
    processes, scrapes = window.footprints[-1].processes, window.scrape_seconds
    spread = f"p50 {ms(quantile(scrapes, 0.5))}, longest {ms(max(scrapes))}"
    shared = f"{mib(proportional)} with shared pages counted once; {processes} process(es)"
    size = f"{window.last.compressed_bytes:,} bytes, compressed"
    return [
        limited("CPU, of one core", window.cores(), limits.cores, "{:.2%}".format),
        limited("resident memory, at most", resident, limits.resident_bytes, mib, shared),
        limited("scrape, p99", quantile(scrapes, 0.99), limits.scrape_seconds, ms, spread),
        Row("answer to a scrape", f"{window.last.samples():,} samples", size),
    ]


def peer_rows(window: Window, limits: Limits) -> list[Row]:
    """The same of node_exporter, which has no target."""
    return [Row(f"node_exporter: {row.what}", *row[1:3]) for row in usage_rows(window, limits)]


def watch_window(
    exporters: Mapping[str, Exporter],
    *,
    warmup_seconds: float,
    window_seconds: float,
    interval_seconds: float = WINDOW_INTERVAL_SECONDS,
) -> dict[str, Window]:
    """Scrape all of them at this interval through the window, then time scrapes; raises BenchError."""
    end = time.monotonic() + warmup_seconds
    while time.monotonic() < end:
        for exporter in exporters.values():
            scrape(exporter.address)
        time.sleep(min(1.0, max(0.0, end - time.monotonic())))
    windows = {name: Window(first := scrape(each.address), first) for name, each in exporters.items()}
    began = time.monotonic()
    _add_footprints(exporters, windows)
    for number in range(1, round(window_seconds / interval_seconds) + 1):
        time.sleep(max(0.0, began + number * interval_seconds - time.monotonic()))
        for name, exporter in exporters.items():
            windows[name].last = scrape(exporter.address)
        _add_footprints(exporters, windows)
    for window in windows.values():
        window.seconds = time.monotonic() - began
    for name, exporter in exporters.items():
        for _ in range(LATENCY_SCRAPES):
            time.sleep(LATENCY_PAUSE_SECONDS)
            windows[name].scrape_seconds.append(scrape(exporter.address).seconds)
    return windows


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


def peer_note(*, known: bool) -> str:
    """What a reader must know of the peer."""
    if known:
        return "node_exporter, with its default collectors and no GPU or RDMA port, was watched alike."
    return f"No peer: {NODE_EXPORTER} is not installed (apt install {NODE_EXPORTER})."
