"""Collector `gpu_driver`: how many GPUs there should be, and whether the driver answers.

It asks the bus and the agent's own books, never the driver: it is what still speaks when the driver hangs.
"""

from __future__ import annotations

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Collection, Series
from rankwatch_agent.runtime.supervision.schedule import Schedule
from rankwatch_agent.sources.gpu.driver import Driver
from rankwatch_agent.sources.gpu.pci import PciGpus

_EXPECTED = metric("rankwatch_gpus_expected")
_VISIBLE = metric("rankwatch_gpus_visible")
_STATE = metric("rankwatch_gpu_driver_state")
_UNRESPONSIVE = metric("rankwatch_gpu_driver_unresponsive_total")
_STARTS = metric("rankwatch_gpu_worker_starts_total")


class GpuDriverCollector:
    """Expected against visible GPUs, the driver's state, and how often it hung."""

    name = "gpu_driver"

    def __init__(self, *, driver: Driver, pci: PciGpus, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._driver = driver
        self._pci = pci

    def collect(self) -> Collection:
        """Read the bus once; raises NotApplicable where there is none, CollectError.

        A node without a GPU expects 0, and nothing is said of a driver it does not need.
        """
        expected = len(self._pci.expected())
        facts = self._driver.facts()
        counts = (Series(_EXPECTED, (), expected), Series(_VISIBLE, (), facts.visible))
        if expected == 0 and facts.starts == 0:
            return Collection(counts)
        return Collection(
            (
                *counts,
                Series(_STATE, (facts.state.value,), 1),
                Series(_UNRESPONSIVE, (), facts.unresponsive),
                Series(_STARTS, (), facts.starts),
            )
        )
