"""The agent's own process metrics (CPU, memory, file descriptors), as prometheus_client reads them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import ProcessCollector

from rankwatch_agent.runtime.export.family import Family, Point


class ProcessFamilies:
    """The `process_*` families of this process, under the names every client library uses."""

    def __init__(self) -> None:
        self._collector = ProcessCollector(registry=None)

    def families(self) -> Iterable[Family]:
        """Read /proc/self; families that cannot be read are left out."""
        for metric in self._collector.collect():
            points = [
                Point(sample.name.removeprefix(metric.name), (), sample.value) for sample in metric.samples
            ]
            yield Family(metric.name, metric.type, metric.unit, metric.documentation, (), points)
