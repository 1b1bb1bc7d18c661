"""Collectors `gpu` and `gpu_driver`: what NVML reports of each GPU, and whether the driver answers.

`gpu` asks the driver through a worker process. `gpu_driver` reads only the PCI bus, the kernel's modules and
the state that `Driver` keeps, so its series stay when the driver hangs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, Series, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.source import source
from rankwatch_agent.sources.gpu.driver import Driver
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from rankwatch_agent.sources.gpu.protocol import Failure, Gpu, Reading, Sample, XidEvent
from rankwatch_agent.sources.kernel_files import read_kernel_file
from rankwatch_agent.sources.pci import PciGpus
from rankwatch_agent.sources.shared import NodeShared
from rankwatch_agent.sources.xid import LOG_LEVELS, XidCounter

logger = logging.getLogger(__name__)

MAX_REMEMBERED_GPUS = 256
"""GPUs remembered after they were lost; no node has had as many."""
_DRIVER_SHARE = 0.8
"""Share of the collector's deadline that the driver may use; the rest is for killing its worker."""

_UP = "rankwatch_gpu_up"
_INFO = "rankwatch_gpu_info"

MODULES = {
    "nvidia": ("nvidia",),
    "nvidia_uvm": ("nvidia_uvm",),
    "nvidia_peermem": ("nvidia_peermem", "nv_peer_mem"),
    "gdrdrv": ("gdrdrv",),
}
"""Value of the label `module` -> names of the kernel module, the present one first."""


# Hundreds of driver calls, which a sick GPU makes slow; GPM averages over the whole interval.
@source(interval_seconds=10.0, deadline_seconds=8.0)
def gpu(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    yield GpuCollector(
        driver=shared.driver,
        pci=PciGpus(config.sysfs),
        inventory=shared.inventory,
        xids=shared.xids,
        schedule=schedule,
        library=config.nvml_library,
    )


@source(interval_seconds=5.0, deadline_seconds=5.0)
def gpu_driver(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    pci = PciGpus(config.sysfs)
    yield GpuDriverCollector(driver=shared.driver, pci=pci, sysfs=config.sysfs, schedule=schedule)


class GpuCollector:
    """Exports the GPUs and publishes them in the inventory for the collectors that label by GPU."""

    name = "gpu"

    def __init__(
        self,
        *,
        driver: Driver,
        pci: PciGpus,
        inventory: GpuInventory,
        xids: XidCounter,
        schedule: Schedule,
        library: Path | None = None,
    ) -> None:
        """Ask the driver even without a GPU on the PCI bus where the operator names the `library` of NVML,
        because WSL, some virtual machines and drivers under test show none."""
        self.interval_seconds, self.deadline_seconds = schedule
        self._library = library
        self._driver = driver
        self._pci = pci
        self._inventory = inventory
        self._xids = xids
        self._remembered: dict[str, Gpu] = {}
        self._lost: frozenset[str] = frozenset()
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Ask the driver once.

        Raises NotApplicable where there is no NVIDIA GPU or the driver is released, CollectError where
        the driver hangs, fails or shows no GPU.
        """
        try:
            if self._expected() == 0 and not (self._library and self._library.exists()):
                raise NotApplicable("there is no NVIDIA GPU on the PCI bus")
            answer = self._driver.collect(_DRIVER_SHARE * self.deadline_seconds)
            result = answer.reading or answer.failure
            if result is None:
                raise CollectError("the NVML worker sent an empty answer")
            for event in result.xids:
                self._xids.add("nvml", event.uuid, event.xid, event.timestamp_seconds)
                self._log_xid(event)
            if isinstance(result, Failure) and not result.gpus:
                absent = result.absent and not self._expected()
                raise (NotApplicable if absent else CollectError)(result.message)
            return self._publish(result)
        except (CollectError, NotApplicable):
            self._inventory.forget_exported()
            raise

    def _publish(self, result: Reading | Failure) -> Collection:
        gpus = self._with_lost(result.gpus)
        self._log_losses(gpus)
        samples = [sample for gpu in gpus for sample in gpu.samples]
        if isinstance(result, Reading):
            samples += result.samples
        for warning in result.warnings if isinstance(result, Reading) else (result.message,):
            if self._log_limit.allows(warning):
                logger.warning("collector gpu: part of the reading failed: %s", warning)
        series = tuple(Series(metric(each.metric), each.labels, each.value) for each in samples)
        self._inventory.publish(map(_identity, gpus), ((each.metric.name, each.labels) for each in series))
        return Collection(series)

    def _with_lost(self, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
        """Return these GPUs, and as lost those that were seen earlier: a new worker knows nothing of them."""
        present = {gpu.uuid: gpu for gpu in gpus}
        missing = tuple(gpu for uuid, gpu in self._remembered.items() if uuid not in present)
        for uuid, gpu in present.items():
            if uuid in self._remembered or len(self._remembered) < MAX_REMEMBERED_GPUS:
                self._remembered[uuid] = _as_lost(gpu)
        return (*present.values(), *missing)

    def _expected(self) -> int | None:
        """Count the GPUs on the bus; None where the bus cannot be read, so that only the driver knows."""
        try:
            return len(self._pci.expected())
        except (CollectError, NotApplicable):
            return None

    def _log_losses(self, gpus: Iterable[Gpu]) -> None:
        """Log each GPU that was lost since the last reading, and each one that is back."""
        lost = frozenset(gpu.uuid for gpu in gpus if not gpu.up)
        for gpu in gpus:
            identity = f"GPU {gpu.uuid} (index {gpu.index}, PCI {gpu.pci_bus_id})"
            if gpu.uuid in lost - self._lost:
                logger.error("%s is lost: %s", identity, gpu.lost_reason, extra={"event": "gpu_lost"})
            elif gpu.uuid in self._lost - lost:
                logger.info("%s is back", identity, extra={"event": "gpu_found"})
        self._lost = lost

    def _log_xid(self, event: XidEvent) -> None:
        meaning = self._xids.meaning(event.xid)
        found = self._remembered.get(event.uuid)
        if self._log_limit.allows(f"{event.uuid} XID {event.xid}"):
            logger.log(
                LOG_LEVELS.get(meaning.severity, logging.INFO),
                "XID %d on GPU %s%s: %s; severity %s, action %s; from NVML",
                event.xid,
                event.uuid,
                f" (index {found.index}, PCI {found.pci_bus_id})" if found else "",
                meaning.meaning,
                meaning.severity,
                meaning.action,
                extra={"event": "xid"},
            )


class GpuDriverCollector:
    """Exports expected and visible GPUs, the driver's state, and how often the driver hung."""

    name = "gpu_driver"

    def __init__(self, *, driver: Driver, pci: PciGpus, sysfs: Path, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._driver = driver
        self._pci = pci
        self._modules = sysfs / "module"
        self._most_visible = 0

    def collect(self) -> Collection:
        """Read the bus once; raises NotApplicable where there is none, CollectError.

        On a node without a GPU, where no worker ever ran, only the two numbers of GPUs are exported.
        """
        expected = len(self._pci.expected())
        status = self._driver.status()
        self._most_visible = max(self._most_visible, status.visible)
        if not self._pci.shows_gpus:  # then only the driver knows how many there are
            expected = self._most_visible
        counts = (
            sample("rankwatch_gpus_expected", (), expected),
            sample("rankwatch_gpus_visible", (), status.visible),
        )
        if expected == 0 and status.starts == 0:
            return Collection(counts)
        return Collection(
            (
                *counts,
                *(
                    sample("rankwatch_nvidia_module_loaded", (name,), self._loaded(names))
                    for name, names in MODULES.items()
                ),
                sample("rankwatch_gpu_driver_state", (status.state.value,), 1),
                sample("rankwatch_gpu_driver_unresponsive_total", (), status.unresponsive),
            )
        )

    def _loaded(self, names: Iterable[str]) -> float:
        """Return 1 if one of the modules is loaded and ready; initstate is missing where it is built in."""
        for directory in (self._modules / name for name in names):
            try:
                return float(read_kernel_file(directory / "initstate").strip() == "live")
            except (NotApplicable, CollectError):
                if directory.is_dir():
                    return 1.0
        return 0.0


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


def _as_lost(gpu: Gpu) -> Gpu:
    """Return the GPU with its identity alone."""
    identity = tuple(sample for sample in gpu.samples if sample.metric == _INFO)
    return msgspec.structs.replace(
        gpu,
        up=False,
        lost_reason="the driver does not show it any more",
        pids=(),
        samples=(Sample(_UP, (gpu.uuid,), 0.0), *identity),
    )
