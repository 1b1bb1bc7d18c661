"""Collector `rdma`: ports of InfiniBand, RoCE and EFA devices, from /sys/class/infiniband.

Several hundred small files on a node with eight devices. Each stands alone: an odd file, port or device
costs only its own series. Reading a state may take the kernel's RTNL lock with some drivers (bnxt_re, irdma:
`ib_get_eth_speed`); there is no other way to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Collection, Series
from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.runtime.supervision.log_limit import LogLimit
from rankwatch_agent.runtime.supervision.schedule import Schedule
from rankwatch_agent.sources.kernel_files import list_names, names_or_none
from rankwatch_agent.sources.network import InterfaceChoice
from rankwatch_agent.sources.parts import collect_parts
from rankwatch_agent.sources.rdma.counters import TOTALS, counter_series, read_counters
from rankwatch_agent.sources.rdma.sysfs import (
    SysfsFiles,
    parse_counter,
    parse_physical_state,
    parse_rate,
    parse_state,
    parse_word,
)
from rankwatch_agent.sources.topology.pci_device import driver_of, is_virtual_function, locate


class PortIdentity(NamedTuple):
    """Words about a port; each is empty where it is not known."""

    link_layer: str
    board: str
    firmware_version: str
    hca_type: str
    network_device: str
    pci_bus_id: str
    numa_node: str
    driver: str


def read_identity(files: SysfsFiles, device: str, port: str) -> PortIdentity:
    """The port `port` of the device at the path `device`."""
    place = locate(f"{device}/device")
    return PortIdentity(
        link_layer=files.value(f"{device}/ports/{port}/link_layer", parse_word) or "",
        board=files.value(f"{device}/board_id", parse_word) or "",
        firmware_version=files.value(f"{device}/fw_ver", parse_word) or "",
        hca_type=files.value(f"{device}/hca_type", parse_word) or "",
        network_device=_network_device(files, device, port),
        pci_bus_id=place.address if place is not None else "",
        numa_node=str(place.numa_node) if place is not None and place.numa_node is not None else "",
        driver=driver_of(f"{device}/device"),
    )


def _network_device(files: SysfsFiles, device: str, port: str) -> str:
    """The interface on the same PCI function whose number of a port matches; else that of the first GID.

    A device with several ports has one interface for each; `dev_port` counts from 0.
    """
    for name in names_or_none(f"{device}/device/net"):
        number = files.value(f"{device}/device/net/{name}/dev_port", parse_counter)
        if number is None or number == int(port) - 1:
            return name
    return files.value(f"{device}/ports/{port}/gid_attrs/ndevs/0", parse_word) or ""


_INFO = metric("rankwatch_rdma_port_info")
_UP = metric("rankwatch_rdma_port_up")
_STATE = metric("rankwatch_rdma_port_state")
_PHYSICAL_STATE = metric("rankwatch_rdma_port_physical_state")
_RATE = metric("rankwatch_rdma_port_rate_bytes")

IDENTITY_SECONDS = 60.0
"""Age at which the identity is read anew: an interface may be renamed, a driver loaded again."""
STATE_RETRY_SECONDS = 60.0
"""Time for which a state that cannot be read is left alone: a port that is back must soon be seen."""
_ALWAYS_ACTIVE = "efa"
"""Driver whose port says ACTIVE and LinkUp whatever the state of the link (efa_query_port)."""


class RdmaPort:
    """A port and what is remembered of it between two runs. Not for several threads at once."""

    def __init__(
        self,
        path: str,
        name: str,
        port: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._labels = (name, port)
        self._directory = f"{path}/ports/{port}"
        self._monotonic = monotonic
        self._files = SysfsFiles(monotonic)
        self._identity: PortIdentity | None = None
        self._identified = 0.0
        self._states: tuple[str | None, str | None] = (None, None)
        self._standard: set[str] = set()
        self.counter_names: frozenset[str] = frozenset()
        """Hardware counters found in the last run."""

    def series(self) -> Iterator[Series | CollectError]:
        """Read the port once; what cannot be read has no series, but an error."""
        identity = self._known_identity()
        # A tuple begins with its labels in declared order; the driver is only for us.
        yield Series(_INFO, (*self._labels, *identity[:-1]), 1)
        yield from self._link(identity)
        hardware = read_counters(self._files, f"{self._directory}/hw_counters")
        self.counter_names = frozenset(hardware)
        # Where both hold a name (rxe: link_downed), the port's own is the one of the specification.
        own = read_counters(self._files, f"{self._directory}/counters")
        self._standard |= own.keys() & TOTALS.keys()
        yield from counter_series(*self._labels, {**hardware, **own}, self._standard)
        yield from self._files.take_broken()

    def _known_identity(self) -> PortIdentity:
        now = self._monotonic()
        if self._identity is None or now - self._identified >= IDENTITY_SECONDS:
            self._identity = read_identity(self._files, self._path, self._labels[1])
            self._identified = now
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
            yield Series(_STATE, (*self._labels, state), 1)
        if physical is not None:
            yield Series(_PHYSICAL_STATE, (*self._labels, physical), 1)
        if state == "active":  # a port that is down gives the lowest speed as a placeholder
            yield from self._rate()

    def _link_of_interface(self, name: str) -> Iterator[Series]:
        """The state of the interface beside it, if there is one; else nothing is known of the link."""
        path = f"{self._path}/device/net/{name}/operstate"
        operational = self._files.value(path, parse_word) if name else None
        if operational not in (None, "unknown"):
            yield Series(_UP, self._labels, float(operational == "up"))
        yield from self._rate()

    def _rate(self) -> Iterator[Series]:
        rate = self._files.value(f"{self._directory}/rate", parse_rate)
        if rate is not None:
            yield Series(_RATE, self._labels, rate)


MAX_PORTS = 16
"""Most ports read of one device; an HCA has one or two."""
NO_PORT = ""
"""Label of what belongs to the device as a whole."""


class RdmaDevice:
    """A device below /sys/class/infiniband and what is remembered of its ports."""

    def __init__(self, path: str, name: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._name = name
        self._monotonic = monotonic
        self._files = SysfsFiles(monotonic)
        self._ports: dict[str, RdmaPort] = {}

    def series(self) -> Iterator[Series | CollectError]:
        """Read the device once; raises NotApplicable where it has gone, CollectError without any port."""
        directory = f"{self._path}/ports"
        numbers = [name for name in list_names(directory) if name.isascii() and name.isdigit()][:MAX_PORTS]
        if not numbers:
            raise CollectError(f"{directory} holds no port")
        self._ports = {number: self._ports.get(number) or self._new(number) for number in numbers}
        for port in self._ports.values():
            yield from port.series()
        yield from self._own_counters()
        yield from self._files.take_broken()

    def _new(self, number: str) -> RdmaPort:
        return RdmaPort(self._path, self._name, number, self._monotonic)

    def _own_counters(self) -> Iterator[Series]:
        """Those of the device, such as EFA's failed commands; mlx5 repeats those of its ports there."""
        of_ports = frozenset().union(*(port.counter_names for port in self._ports.values()))
        own = read_counters(self._files, f"{self._path}/hw_counters")
        kept = {name: value for name, value in own.items() if name not in of_ports}
        yield from counter_series(self._name, NO_PORT, kept)


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
