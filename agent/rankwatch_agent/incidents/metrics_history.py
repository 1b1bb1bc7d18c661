"""The agent's own metrics as they were: the counters of before an incident, to be read beside those after it.

Kept compressed, a few pages of the last half hour: young ones close together, old ones far apart. A run whose
steps take minutes stands for long before it can be said to stand.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

PAGE_SECONDS = 30.0
"""Between two pages."""
OLDEST_SECONDS = 2000.0
"""Pages older than this are let go: with doubling distances some seven are kept, of about 50 kB each."""
MAX_PAGE_BYTES = 8 << 20
"""A larger page, compressed, is not kept."""


class Page(NamedTuple):
    """The metrics at one moment."""

    moment: float
    """Monotonic, seconds."""
    text: bytes
    """Prometheus' text format, compressed by gzip."""


class MetricsPages:
    """Takes a page now and then; one thread calls `take`, and `connect` comes before."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._render: Callable[[], bytes] | None = None
        self._pages: list[Page] = []

    def connect(self, render: Callable[[], bytes]) -> None:
        """Say where pages come from: the metrics as served, compressed by gzip."""
        self._render = render

    def now(self) -> Page | None:
        """The metrics as they are; None where they cannot be had."""
        if self._render is None:
            return None
        page = Page(self._monotonic(), self._render())
        return page if len(page.text) <= MAX_PAGE_BYTES else None

    def keep(self) -> None:
        """Keep a page where the last one is old enough."""
        now = self._monotonic()
        if self._pages and now - self._pages[-1].moment < PAGE_SECONDS:
            return
        page = self.now()
        if page is not None:
            self._pages = [*_thinned(self._pages, now), page]

    def before(self, moment: float) -> Page | None:
        """The youngest page from before a moment, else the oldest there is; None where there is none."""
        earlier = [page for page in self._pages if page.moment < moment]
        return earlier[-1] if earlier else next(iter(self._pages), None)


def _thinned(pages: list[Page], now: float) -> list[Page]:
    """The oldest page of each age: up to half a minute, a minute, two, four, ..."""
    kept: dict[int, Page] = {}
    for page in pages:
        age = now - page.moment
        if age <= OLDEST_SECONDS:
            kept.setdefault(math.ceil(math.log2(max(1.0, age / PAGE_SECONDS))), page)
    return list(kept.values())
