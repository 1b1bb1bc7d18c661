"""Collector `rdma`: ports of InfiniBand, RoCE and EFA devices, from /sys/class/infiniband.

Several hundred small files on a node with eight devices. Each stands alone: an odd file, port or device
costs only its own series. Reading a state may take the kernel's RTNL lock with some drivers (bnxt_re, irdma:
`ib_get_eth_speed`); there is no other way to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.runtime.supervision.log_limit import LogLimit
from rankwatch_agent.runtime.supervision.schedule import Schedule
from rankwatch_agent.sources.interface_choice import InterfaceChoice
from rankwatch_agent.sources.parts import collect_parts
from rankwatch_agent.sources.rdma.device import RdmaDevice
from rankwatch_agent.sources.topology.listing import list_names
from rankwatch_agent.sources.topology.pci_device import is_virtual_function


class RdmaCollector:
    """The devices that `choice` picks; virtual functions only where it includes them by name."""

    name = "rdma"

    def __init__(
        self,
        *,
        sysfs: Path,
        choice: InterfaceChoice,
        schedule: Schedule,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._directory = str(sysfs / "class" / "infiniband")
        self._choice = choice
        self._monotonic = monotonic
        self._log_limit = LogLimit(monotonic)
        self._devices: dict[str, RdmaDevice] = {}

    def collect(self) -> Collection:
        """Read the chosen devices; raises NotApplicable where there is none, CollectError."""
        names = self._chosen(list_names(self._directory))
        self._devices = {name: self._devices.get(name) or self._new(name) for name in names}
        parts = [device.series for device in self._devices.values()]
        return collect_parts(self.name, parts, self._log_limit)

    def _chosen(self, names: list[str]) -> list[str]:
        own = frozenset(n for n in names if not is_virtual_function(f"{self._directory}/{n}/device"))
        return self._choice.choose(names, own)

    def _new(self, name: str) -> RdmaDevice:
        return RdmaDevice(f"{self._directory}/{name}", name, self._monotonic)
