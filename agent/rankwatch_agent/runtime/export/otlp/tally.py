"""What became of the batches: the metrics of the export about itself."""

from __future__ import annotations

import threading
from enum import StrEnum

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Collection, Series

_BATCHES = metric("rankwatch_otlp_batches_total")
_LAST_SUCCESS = metric("rankwatch_otlp_last_success_timestamp_seconds")


class Outcome(StrEnum):
    """What became of a batch."""

    SENT = "sent"
    DROPPED = "dropped"


class Tally:
    """Counts batches; safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Every outcome from the start, at 0: rate() needs the sample before the first failure.
        self._batches = dict.fromkeys(Outcome, 0)
        self._last_success: float | None = None

    def count(self, outcome: Outcome, at: float) -> None:
        """One more batch with this outcome, at `at` in Unix seconds."""
        with self._lock:
            self._batches[outcome] += 1
            if outcome is Outcome.SENT:
                self._last_success = at

    def collection(self) -> Collection:
        """The counts as series."""
        with self._lock:
            series = [Series(_BATCHES, (outcome.value,), count) for outcome, count in self._batches.items()]
            if self._last_success is not None:
                series.append(Series(_LAST_SUCCESS, (), self._last_success))
        return Collection(tuple(series))
