"""Collector `gpu`: what NVML tells of each GPU, asked through a worker process."""

from __future__ import annotations

import logging

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Collection, Series
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.supervision.log_limit import LogLimit
from rankwatch_agent.runtime.supervision.schedule import Schedule
from rankwatch_agent.sources.gpu.driver import Driver
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from rankwatch_agent.sources.gpu.pci import PciGpus
from rankwatch_agent.sources.gpu.protocol import Failure, Gpu, Reading
from rankwatch_agent.sources.gpu.remembered import GpuMemory
from rankwatch_agent.sources.xid.ledger import XidLedger

logger = logging.getLogger(__name__)

_ASK_SHARE = 0.8
"""Part of the collector's deadline that the driver may use; the rest is for killing its worker."""


class GpuCollector:
    """Publishes what it finds in the inventory, for the collectors that speak of GPUs too."""

    name = "gpu"

    def __init__(
        self,
        *,
        driver: Driver,
        pci: PciGpus,
        inventory: GpuInventory,
        ledger: XidLedger,
        schedule: Schedule,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._driver = driver
        self._pci = pci
        self._inventory = inventory
        self._ledger = ledger
        self._memory = GpuMemory()
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Ask the driver once.

        Raises NotApplicable where there is no NVIDIA GPU or the driver is released, CollectError where
        the driver hangs, fails or shows no GPU.
        """
        try:
            return self._collect()
        except (CollectError, NotApplicable):
            self._inventory.forget_exported()
            raise

    def _collect(self) -> Collection:
        if self._expected() == 0:
            raise NotApplicable("there is no NVIDIA GPU on the PCI bus")
        answer = self._driver.collect(_ASK_SHARE * self.deadline_seconds)
        told = answer.reading or answer.failure
        if told is None:
            raise CollectError("the NVML worker answered nothing")
        for event in told.xids:
            self._ledger.note("nvml", event.uuid, event.xid, event.timestamp_seconds)
        if isinstance(told, Failure) and not told.gpus:
            raise self._failure(told)
        return self._publish(told)

    def _publish(self, told: Reading | Failure) -> Collection:
        """All GPUs, those among them that an earlier worker saw and this one never did."""
        gpus = self._memory.with_lost(told.gpus)
        samples = [sample for gpu in gpus for sample in gpu.samples]
        if isinstance(told, Reading):
            samples += told.samples
        for warning in told.warnings if isinstance(told, Reading) else (told.message,):
            self._warn(warning)
        series = tuple(Series(metric(each.metric), each.labels, each.value) for each in samples)
        self._inventory.publish(map(_identity, gpus), ((each.metric.name, each.labels) for each in series))
        return Collection(series)

    def _expected(self) -> int | None:
        """GPUs on the bus; None where the bus cannot be seen, so that only the driver can tell."""
        try:
            return len(self._pci.expected())
        except (CollectError, NotApplicable):
            return None

    def _failure(self, failure: Failure) -> CollectError | NotApplicable:
        if failure.absent and self._expected() is None:
            return NotApplicable(failure.message)
        return CollectError(failure.message)

    def _warn(self, sentence: str) -> None:
        if self._log_limit.allows(sentence):
            logger.warning("collector gpu goes on without a part: %s", sentence)


def _identity(gpu: Gpu) -> GpuIdentity:
    return GpuIdentity(
        uuid=gpu.uuid,
        pci_bus_id=gpu.pci_bus_id,
        index=gpu.index,
        minor_number=gpu.minor_number,
        model=gpu.model,
        mig_uuids=gpu.mig_uuids,
        pids=gpu.pids,
    )
