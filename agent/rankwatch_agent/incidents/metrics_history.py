"""Keeps the agent's own metrics of the last half hour, so that a bundle shows them from before an incident.

A few compressed pages are kept, young ones close together and old ones far apart. A run whose steps take
minutes has stalled for a long time before it can be called stalled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

PAGE_INTERVAL_SECONDS = 30.0
"""Time between two pages."""
MAX_AGE_SECONDS = 2000.0
"""Older pages are dropped. With doubling distances about seven are kept, of about 50 kB each."""
MAX_PAGE_BYTES = 8 << 20
"""Larger pages (compressed) are not kept."""


class MetricsPage(NamedTuple):
    """The metrics at one moment."""

    moment: float
    """Monotonic, seconds."""
    text: bytes
    """Prometheus' text format, compressed by gzip."""


class MetricsHistory:
    """Keeps a page now and then. Only one thread calls `keep`, after `set_source`."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._render: Callable[[], bytes] | None = None
        self._pages: list[MetricsPage] = []

    def set_source(self, render: Callable[[], bytes]) -> None:
        """Set the function that returns the metrics as served, compressed by gzip."""
        self._render = render

    def now(self) -> MetricsPage | None:
        """Return the present metrics; None without a source, or where they are too large."""
        if self._render is None:
            return None
        page = MetricsPage(self._monotonic(), self._render())
        return page if len(page.text) <= MAX_PAGE_BYTES else None

    def keep(self) -> None:
        """Keep a page if the last one is old enough."""
        now = self._monotonic()
        if self._pages and now - self._pages[-1].moment < PAGE_INTERVAL_SECONDS:
            return
        page = self.now()
        if page is not None:
            self._pages = [*_thinned(self._pages, now), page]

    def before(self, moment: float) -> MetricsPage | None:
        """Return the youngest page from before a moment, else the oldest page, if there is any."""
        earlier = [page for page in self._pages if page.moment < moment]
        return earlier[-1] if earlier else next(iter(self._pages), None)


def _thinned(pages: list[MetricsPage], now: float) -> list[MetricsPage]:
    """Return the oldest page of each age class: up to half a minute, a minute, two, four, ..."""
    kept: dict[int, MetricsPage] = {}
    for page in pages:
        age = now - page.moment
        if age <= MAX_AGE_SECONDS:
            kept.setdefault(math.ceil(math.log2(max(1.0, age / PAGE_INTERVAL_SECONDS))), page)
    return list(kept.values())
