"""Histograms of durations per run and node, and the traces that show what fell into their buckets."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Mapping

from rankwatch_agent.runtime.collector import Exemplar
from rankwatch_agent.runtime.turns import excess

BOUNDS_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0,
)  # fmt: skip
"""Upper bounds from a 5 ms toy step to one that takes minutes; each about 2.2 times the one before."""
STEP = ""
"""In place of a checkpoint operation, for steps."""
_MAX_HISTOGRAMS = 400
"""Of more, the user with most of them loses the oldest."""


class Durations:
    """One histogram of a run on this node, over all of its ranks."""

    def __init__(self) -> None:
        self.sum = 0.0
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)

    def observe(self, seconds: float) -> None:
        """Count one step or operation."""
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> tuple[tuple[float, int], ...]:
        """Cumulative counts by upper bound; the last bound is infinite."""
        total = 0
        found = []
        for bound, count in zip((*BOUNDS_SECONDS, math.inf), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return tuple(found)


class Exemplars:
    """The newest trace in each bucket of each histogram. One collector notes them, another exports them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], dict[int, Exemplar]] = {}
        self._owners: dict[str, int] = {}

    def note(self, run: str, operation: str, exemplar: Exemplar, owner: int) -> None:
        """A step (`STEP`), or a checkpoint operation, is in a trace. owner: user id of the run's owner."""
        with self._lock:
            self._owners[run] = owner
            found = self._found.setdefault((run, operation), {})
            found[bisect_left(BOUNDS_SECONDS, exemplar.value)] = exemplar
            if len(self._found) > _MAX_HISTOGRAMS:
                self._forget()

    def _forget(self) -> None:
        for key in excess(self._found, owner=lambda key: self._owners[key[0]], most=_MAX_HISTOGRAMS):
            del self._found[key]
        self._owners = {run: self._owners[run] for run, _ in self._found}

    def of(self, run: str, operation: str) -> Mapping[int, Exemplar]:
        """By number of the bucket."""
        with self._lock:
            return dict(self._found.get((run, operation), {}))
