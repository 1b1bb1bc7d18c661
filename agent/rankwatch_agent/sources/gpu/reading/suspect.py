"""Counters that cannot be true together: full utilisation while nothing in the GPU is active.

Seen for weeks on real nodes, until somebody looked with another tool (NVIDIA/dcgm-exporter#662).
"""

from __future__ import annotations

from collections.abc import Iterable

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device

_SUSPECT = metric("rankwatch_gpu_counters_suspect").name
_UNITS = ("sm", "tensor", "dram")
_READINGS = 2
"""One reading may catch a kernel that only begins."""


class Suspicion:
    """Of one GPU: readings in a row in which the counters contradict each other."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def read(self, gpu: Device) -> Iterable[Sample]:
        """0 or 1 where utilisation and activity are both known."""
        activity = [gpu.activity.get(unit) for unit in _UNITS]
        if gpu.utilization is None or any(each is None for each in activity):
            return
        contradicts = gpu.utilization == 1.0 and all(each == 0.0 for each in activity)
        self._in_a_row = self._in_a_row + 1 if contradicts else 0
        yield gpu.sample(_SUSPECT, 1.0 if self._in_a_row >= _READINGS else 0.0)
