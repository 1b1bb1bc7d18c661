"""Starts the collectors, keeps them apart, and puts their last results into one snapshot."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from rankwatch_agent.runtime.collector import Collector
from rankwatch_agent.runtime.supervision.health import health
from rankwatch_agent.runtime.supervision.runner import Clocks, CollectorRunner
from rankwatch_agent.runtime.supervision.snapshot import Snapshot

WATCH_SECONDS = 1.0
"""How often deadlines are looked at when nobody scrapes, so that the log still tells of a hang."""


class Supervisor:
    """Owns one runner per collector. `snapshot` never waits for a collector."""

    def __init__(
        self, collectors: Sequence[Collector], *, version: str, clocks: Clocks | None = None
    ) -> None:
        clocks = clocks or Clocks()
        self._version = version
        self._stopping = threading.Event()
        self._runners = [CollectorRunner(each, clocks, self._stopping) for each in collectors]
        self._watch = threading.Thread(target=self._watch_deadlines, name="deadlines", daemon=True)

    def start(self) -> None:
        """Start every collector."""
        for runner in self._runners:
            runner.start()
        self._watch.start()

    def stop(self, timeout_seconds: float) -> None:
        """Ask all collectors to stop, and wait for them at most `timeout_seconds` in all."""
        self._stopping.set()
        end = time.monotonic() + timeout_seconds
        for runner in self._runners:
            runner.join(max(0.0, end - time.monotonic()))

    def snapshot(self) -> Snapshot:
        """The last good results and the health of all collectors."""
        records = [(runner.collector, runner.record()) for runner in self._runners]
        found = (record.collection for _, record in records)
        return Snapshot(
            collections=(
                health(self._version, records),
                *(collection for collection in found if collection is not None),
            ),
            pending=tuple(collector.name for collector, record in records if not record.completed),
        )

    def _watch_deadlines(self) -> None:
        while not self._stopping.wait(WATCH_SECONDS):
            for runner in self._runners:
                runner.record()
