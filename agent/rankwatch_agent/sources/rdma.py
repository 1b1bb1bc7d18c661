"""Collector `rdma`: identity, state, speed and counters of the ports in /sys/class/infiniband.

A node with eight devices has several hundred small files. A broken file, port or device costs only its own
series. With some drivers (bnxt_re, irdma: `ib_get_eth_speed`) reading a state takes the kernel's RTNL lock;
there is no other way to read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, Series, collect_parts, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.source import source
from rankwatch_agent.sources.kernel_files import list_names, names_or_empty
from rankwatch_agent.sources.network import DeviceFilter
from rankwatch_agent.sources.pci import driver_of, is_virtual_function, pci_labels
from rankwatch_agent.sources.rdma_counters import (
    TOTALS,
    SysfsFiles,
    counter_series,
    parse_counter,
    parse_physical_state,
    parse_rate,
    parse_state,
    parse_word,
    read_counters,
)
from rankwatch_agent.sources.shared import NodeShared

_UP = metric("rankwatch_rdma_port_up")

MAX_PORTS = 16
"""Most ports read of one device. An HCA has one or two."""
NO_PORT = ""
"""Value of the label `port` for counters of the device as a whole."""
IDENTITY_SECONDS = 60.0
"""Age at which the identity is read again: interfaces are renamed, drivers are reloaded."""
STATE_RETRY_SECONDS = 60.0
"""Time for which a failing state file is skipped. A port that comes back must be seen soon."""
_ALWAYS_ACTIVE = "efa"
"""This driver reports ACTIVE and LinkUp whatever the link does (efa_query_port)."""


@source(interval_seconds=5.0, deadline_seconds=5.0)
def rdma(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    device_filter = DeviceFilter(include=config.rdma_include, exclude=config.rdma_exclude)
    yield RdmaCollector(sysfs=config.sysfs, device_filter=device_filter, schedule=schedule)


class RdmaCollector:
    """Reads the devices that the filter selects. Virtual functions must be included by name."""

    name = "rdma"

    def __init__(
        self,
        *,
        sysfs: Path,
        device_filter: DeviceFilter,
        schedule: Schedule,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._directory = str(sysfs / "class" / "infiniband")
        self._filter = device_filter
        self._monotonic = monotonic
        self._log_limit = LogLimit(monotonic)
        self._devices: dict[str, RdmaDevice] = {}

    def collect(self) -> Collection:
        """Read the selected devices. Raises NotApplicable where there is none, CollectError."""
        names = list_names(self._directory)
        physical = frozenset(n for n in names if not is_virtual_function(f"{self._directory}/{n}/device"))
        self._devices = {
            name: self._devices.get(name) or RdmaDevice(f"{self._directory}/{name}", name, self._monotonic)
            for name in self._filter.select(names, physical)
        }
        return collect_parts(self.name, [each.series for each in self._devices.values()], self._log_limit)


class RdmaDevice:
    """A device of /sys/class/infiniband, with its ports."""

    def __init__(self, path: str, name: str, monotonic: Callable[[], float]) -> None:
        self._path = path
        self._name = name
        self._monotonic = monotonic
        self._files = SysfsFiles(monotonic)
        self._ports: dict[str, RdmaPort] = {}

    def series(self) -> Iterator[Series | CollectError]:
        """Read the device. Raises NotApplicable where it is gone, CollectError where it has no port."""
        directory = f"{self._path}/ports"
        numbers = [name for name in list_names(directory) if name.isascii() and name.isdigit()][:MAX_PORTS]
        if not numbers:
            raise CollectError(f"{directory} holds no port")
        self._ports = {
            number: self._ports.get(number) or RdmaPort(self._path, self._name, number, self._monotonic)
            for number in numbers
        }
        for port in self._ports.values():
            yield from port.series()
        yield from self._device_counters()
        yield from self._files.take_errors()

    def _device_counters(self) -> Iterator[Series]:
        """Yield counters of the device as a whole, such as EFA's failed commands.

        mlx5 repeats the counters of the ports there; these are left out.
        """
        of_ports = frozenset().union(*(port.hardware_counters for port in self._ports.values()))
        own = read_counters(self._files, f"{self._path}/hw_counters")
        kept = {name: value for name, value in own.items() if name not in of_ports}
        yield from counter_series(self._name, NO_PORT, kept)


class RdmaPort:
    """A port, and what is remembered of it between two runs. Not thread-safe."""

    def __init__(self, path: str, name: str, port: str, monotonic: Callable[[], float]) -> None:
        self._path = path
        self._labels = (name, port)
        self._directory = f"{path}/ports/{port}"
        self._monotonic = monotonic
        self._files = SysfsFiles(monotonic)
        self._identity: PortIdentity | None = None
        self._identity_read_at = 0.0
        self._states: tuple[str | None, str | None] = (None, None)
        self._standard: set[str] = set()
        self.hardware_counters: frozenset[str] = frozenset()
        """Names of the hardware counters of the last run."""

    def series(self) -> Iterator[Series | CollectError]:
        """Read the port. A value that cannot be read gives an error instead of a series."""
        identity = self._cached_identity()
        # The fields are in the declared order of the labels. The driver, the last one, is no label.
        yield sample("rankwatch_rdma_port_info", (*self._labels, *identity[:-1]), 1)
        yield from self._link(identity)
        hardware = read_counters(self._files, f"{self._directory}/hw_counters")
        self.hardware_counters = frozenset(hardware)
        # Where both directories hold a name (rxe: link_downed), the specification's is in `counters`.
        own = read_counters(self._files, f"{self._directory}/counters")
        self._standard |= own.keys() & TOTALS.keys()
        yield from counter_series(*self._labels, {**hardware, **own}, self._standard)
        yield from self._files.take_errors()

    def _cached_identity(self) -> PortIdentity:
        now = self._monotonic()
        if self._identity is None or now - self._identity_read_at >= IDENTITY_SECONDS:
            self._identity = read_identity(self._files, self._path, self._labels[1])
            self._identity_read_at = now
        return self._identity

    def _link(self, identity: PortIdentity) -> Iterator[Series]:
        if identity.driver == _ALWAYS_ACTIVE:
            yield from self._link_of_interface(identity.network_device)
            return
        state = self._files.value(f"{self._directory}/state", parse_state, STATE_RETRY_SECONDS)
        physical = self._files.value(
            f"{self._directory}/phys_state", parse_physical_state, STATE_RETRY_SECONDS
        )
        if (state, physical) != self._states:
            self._states = (state, physical)
            self._files.forget_failures()
        if state is not None:
            yield Series(_UP, self._labels, float(state == "active"))
            yield sample("rankwatch_rdma_port_state", (*self._labels, state), 1)
        if physical is not None:
            yield sample("rankwatch_rdma_port_physical_state", (*self._labels, physical), 1)
        if state == "active":  # a port that is down reports the lowest speed as a placeholder
            yield from self._rate()

    def _link_of_interface(self, name: str) -> Iterator[Series]:
        """Yield the state of the network interface on the same device, where it is known."""
        path = f"{self._path}/device/net/{name}/operstate"
        operational = self._files.value(path, parse_word) if name else None
        if operational not in (None, "unknown"):
            yield Series(_UP, self._labels, float(operational == "up"))
        yield from self._rate()

    def _rate(self) -> Iterator[Series]:
        rate = self._files.value(f"{self._directory}/rate", parse_rate)
        if rate is not None:
            yield sample("rankwatch_rdma_port_rate_bytes", self._labels, rate)


class PortIdentity(NamedTuple):
    """Describes a port. A field is empty where it is unknown."""

    link_layer: str
    board: str
    firmware_version: str
    hca_type: str
    network_device: str
    pci_bus_id: str
    numa_node: str
    driver: str


def read_identity(files: SysfsFiles, device: str, port: str) -> PortIdentity:
    """Read the identity of port `port` of the device at the path `device`."""
    pci_bus_id, numa_node = pci_labels(f"{device}/device")
    return PortIdentity(
        link_layer=files.value(f"{device}/ports/{port}/link_layer", parse_word) or "",
        board=files.value(f"{device}/board_id", parse_word) or "",
        firmware_version=files.value(f"{device}/fw_ver", parse_word) or "",
        hca_type=files.value(f"{device}/hca_type", parse_word) or "",
        network_device=_network_device(files, device, port),
        pci_bus_id=pci_bus_id,
        numa_node=numa_node,
        driver=driver_of(f"{device}/device"),
    )


def _network_device(files: SysfsFiles, device: str, port: str) -> str:
    """Return the interface of the port: by its port number on the PCI function, else by the first GID.

    A device with several ports has one interface for each; `dev_port` counts from 0.
    """
    for name in names_or_empty(f"{device}/device/net"):
        number = files.value(f"{device}/device/net/{name}/dev_port", parse_counter)
        if number is None or number == int(port) - 1:
            return name
    return files.value(f"{device}/ports/{port}/gid_attrs/ndevs/0", parse_word) or ""
