"""The agent's peer: Prometheus's own exporter for a node, as Debian ships it."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import BenchError
from .exporters import Effort, Usage, watch
from .processes import background, wait_until
from .scrape import scrape

NODE_EXPORTER = "prometheus-node-exporter"
"""Debian's package, and its program."""


def node_exporter_installed() -> bool:
    """Whether it can be measured here."""
    return shutil.which(NODE_EXPORTER) is not None


def watch_node_exporter(directory: Path, effort: Effort) -> Usage:
    """Start it with its default collectors and watch it; raises BenchError."""
    with node_exporter(directory) as (pid, address):
        return watch(pid, address, effort)


@contextmanager
def node_exporter(directory: Path) -> Iterator[tuple[int, str]]:
    """It runs on a free loopback port; its process id and HOST:PORT. Raises BenchError."""
    address, log = f"127.0.0.1:{_free_port()}", directory / "node-exporter.log"
    with background([NODE_EXPORTER, f"--web.listen-address={address}"], log) as process:
        wait_until(lambda: _answers(address), process, log, f"could not start {NODE_EXPORTER}")
        yield process.pid, address


def _free_port() -> int:
    """A loopback port nobody listens on now: node_exporter does not tell which one it took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(address: str) -> bool:
    try:
        scrape(address)
    except BenchError:
        return False
    return True
