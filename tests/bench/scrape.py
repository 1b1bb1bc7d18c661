"""One scrape of an exporter, as Prometheus makes it."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import time
from typing import NamedTuple

from .result import BenchError

_HEADERS = {
    "Accept": (
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
        "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    ),
    "Accept-Encoding": "gzip",
    "User-Agent": "Prometheus/2.42.0",
}
"""The headers that Prometheus 2.42 sends."""
_TIMEOUT_SECONDS = 10.0
"""Prometheus's own default."""


class Scrape(NamedTuple):
    """The response of an exporter."""

    seconds: float
    """From connecting to the last byte."""
    compressed_bytes: int
    text: str

    def samples(self) -> int:
        """Number of samples."""
        return sum(1 for line in self.text.splitlines() if line and not line.startswith("#"))

    def total(self, name: str) -> float:
        """Sum of all samples of this name."""
        lines = (line for line in self.text.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
        return sum(float(line.rpartition(" ")[2]) for line in lines)


def scrape(address: str) -> Scrape:
    """Scrape HOST:PORT/metrics once, over a connection of its own; raises BenchError."""
    began = time.perf_counter()
    try:
        with contextlib.closing(http.client.HTTPConnection(address, timeout=_TIMEOUT_SECONDS)) as connection:
            connection.request("GET", "/metrics", headers=_HEADERS)
            response = connection.getresponse()
            body = response.read()
            seconds = time.perf_counter() - began
    except OSError as error:
        raise BenchError(f"could not scrape {address}: {error}") from error
    if response.status != http.HTTPStatus.OK:
        raise BenchError(f"could not scrape {address}: status {response.status}")
    plain = gzip.decompress(body) if response.getheader("Content-Encoding") == "gzip" else body
    return Scrape(seconds, len(body), plain.decode())
