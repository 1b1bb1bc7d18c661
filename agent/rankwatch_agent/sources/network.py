"""Collector `network`: bytes, errors, drops, link state, speed and identity of network interfaces.

One read of /proc/net/dev gives the counters. Reading `speed` in sysfs takes the kernel's RTNL lock, on a busy
node for seconds, so the speed is read only when an interface is new or its carrier has changed. The other
sysfs files (operstate, mtu, carrier_changes, carrier_down_count) do not take the lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import (
    Collection,
    Collector,
    Part,
    Schedule,
    Series,
    collect_parts,
    sample,
)
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.source import source
from rankwatch_agent.sources.kernel_files import (
    OUT_OF_DESCRIPTORS,
    OutOfDescriptorsError,
    Table,
    names_or_empty,
    parse_count,
    parse_kernel_file,
    parse_lines,
)
from rankwatch_agent.sources.pci import driver_of, pci_labels
from rankwatch_agent.sources.shared import NodeShared

_COUNTERS = {
    "receive_bytes": metric("rankwatch_network_receive_bytes_total"),
    "transmit_bytes": metric("rankwatch_network_transmit_bytes_total"),
    "receive_errors": metric("rankwatch_network_receive_errors_total"),
    "transmit_errors": metric("rankwatch_network_transmit_errors_total"),
    "receive_drops": metric("rankwatch_network_receive_drops_total"),
    "transmit_drops": metric("rankwatch_network_transmit_drops_total"),
}

_STATES = ("up", "down", "unknown", "notpresent", "lowerlayerdown", "testing", "dormant")
"""As the kernel writes them (`operstates` in net/core/net-sysfs.c)."""
_BYTES_PER_MEGABIT = 1_000_000 / 8


@dataclass(frozen=True, kw_only=True)
class DeviceFilter:
    """Picks network interfaces or RDMA devices by globs over their names."""

    include: tuple[str, ...] = ()
    """Empty: the devices with hardware behind them."""
    exclude: tuple[str, ...] = ("lo",)

    def select(self, names: Iterable[str], physical: frozenset[str]) -> list[str]:
        """Return the selected names, sorted. `physical` holds the names with hardware behind them.

        Without any physical device, as in a pod with its own network namespace, every device that is not
        excluded is selected: the virtual ones are then the only sign of traffic.
        """
        allowed = sorted(name for name in names if not _matches(name, self.exclude))
        if self.include:
            return [name for name in allowed if _matches(name, self.include)]
        return [name for name in allowed if name in physical] or allowed


def _matches(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def with_hardware(directory: Path, names: Iterable[str]) -> frozenset[str]:
    """Return the interfaces of /sys/class/net that have a device behind them."""
    return frozenset(name for name in names if os.path.lexists(directory / name / "device"))


def node_network(procfs: Path) -> Path:
    """Return `procfs`/1/net: the network of the node's first process, also from a pod's network namespace.

    Where that cannot be read, returns `procfs`/net, the network of the agent itself.
    """
    first = procfs / "1" / "net"
    try:
        with (first / "dev").open("rb"):
            return first
    except OSError as error:
        # Running out of descriptors must not switch to another network.
        return first if error.errno in OUT_OF_DESCRIPTORS else procfs / "net"


class InterfaceCounters(NamedTuple):
    """Counters of one interface since it was created."""

    receive_bytes: int
    receive_errors: int
    receive_drops: int
    transmit_bytes: int
    transmit_errors: int
    transmit_drops: int


class _CachedSpeed(NamedTuple):
    """Speed in bytes per second, and the count of carrier changes at which it was read."""

    carrier_changes: int
    bytes_per_second: float | None


@source(interval_seconds=5.0, deadline_seconds=5.0)
def network(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    yield NetworkCollector(
        procfs=config.procfs,
        sysfs=config.sysfs,
        device_filter=DeviceFilter(include=config.network_include, exclude=config.network_exclude),
        schedule=schedule,
    )


class NetworkCollector:
    """Watches the selected interfaces of the node that `procfs` and `sysfs` belong to."""

    name = "network"

    def __init__(self, *, procfs: Path, sysfs: Path, device_filter: DeviceFilter, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._procfs = procfs
        self._interfaces = sysfs / "class" / "net"
        self._filter = device_filter
        self._speeds: dict[str, _CachedSpeed] = {}
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Read the selected interfaces. Raises CollectError, or NotApplicable where there is none."""
        counters, errors = self._counters()
        # A garbled line may hide an interface that sysfs still lists.
        names = sorted({*counters, *(names_or_empty(str(self._interfaces)) if errors else ())})
        physical = with_hardware(self._interfaces, names)
        selected = self._filter.select(names, physical)
        self._speeds = {name: speed for name, speed in self._speeds.items() if name in selected}
        sysfs_parts = (part for name in selected for part in self._sysfs_parts(name, name in physical))
        parts: list[Part] = [lambda: errors, lambda: _counter_series(counters, selected), *sysfs_parts]
        return collect_parts(self.name, parts, self._log_limit)

    def _counters(self) -> tuple[Mapping[str, InterfaceCounters], list[CollectError]]:
        """Return the counters of all interfaces, and the errors of broken lines.

        Raises what parse_kernel_file raises, and CollectError where every line is broken.
        """
        path = node_network(self._procfs) / "dev"
        table = parse_kernel_file(path, parse_net_dev)
        errors = table.errors(path)
        if errors and not table.found:
            raise errors[0]
        return table.found, errors

    def _sysfs_parts(self, name: str, physical: bool) -> Iterator[Part]:
        """Yield one part per file, so that a broken file costs only its own series."""
        directory = self._interfaces / name
        yield lambda: [
            sample(
                "rankwatch_network_up", (name,), parse_kernel_file(directory / "operstate", parse_operstate)
            )
        ]
        yield lambda: self._speed(name)
        yield lambda: [
            sample(
                "rankwatch_network_link_flaps_total",
                (name,),
                parse_kernel_file(directory / "carrier_down_count", parse_count),
            )
        ]
        yield lambda: [
            sample("rankwatch_network_mtu_bytes", (name,), parse_kernel_file(directory / "mtu", parse_count))
        ]
        if physical:
            yield lambda: [_identity(name, str(directory / "device"))]

    def _speed(self, name: str) -> Iterator[Series]:
        """Yield the speed, read anew after each carrier change: without their count it would grow stale."""
        carrier_changes = parse_kernel_file(self._interfaces / name / "carrier_changes", parse_count)
        cached = self._speeds.get(name)
        if cached is None or cached.carrier_changes != carrier_changes:
            try:
                cached = _CachedSpeed(carrier_changes, self._read_speed(name))
            except OutOfDescriptorsError:
                raise
            except CollectError:  # raised once, and read again after the next carrier change
                self._speeds[name] = _CachedSpeed(carrier_changes, None)
                raise
            self._speeds[name] = cached
        if cached.bytes_per_second is not None:
            yield sample("rankwatch_network_speed_bytes", (name,), cached.bytes_per_second)

    def _read_speed(self, name: str) -> float | None:
        try:
            return parse_kernel_file(self._interfaces / name / "speed", parse_speed)
        except NotApplicable:  # many drivers have no speed, or none while the link is down
            return None


def parse_net_dev(text: str) -> Table[str, InterfaceCounters]:
    """Parse /proc/net/dev: eight receive counters, then eight transmit counters per interface.

    Raises ValueError where its two heading lines are missing.
    """
    return parse_lines(text, _parse_interface, heading=2)


def _parse_interface(line: str) -> tuple[str, InterfaceCounters]:
    # The name itself may hold a colon (an alias such as eth0:1).
    name, _, rest = line.rpartition(":")
    columns = [parse_count(column) for column in rest.split()]
    if not name.strip() or "/" in name or len(columns) < 16:
        raise ValueError(f"unexpected line {line!r:.100}")
    return name.strip(), InterfaceCounters(*columns[0:1], *columns[2:4], *columns[8:9], *columns[10:12])


def parse_operstate(text: str) -> float:
    """Return 1 for `up`, 0 for the other states of RFC 2863. Raises ValueError for any other text."""
    if text.strip() not in _STATES:
        raise ValueError(f"{text.strip()!r:.40} is not a state of an interface")
    return float(text.strip() == "up")


def parse_speed(text: str) -> float | None:
    """Convert `speed` from megabits to bytes per second. Both -1 and 4294967295 mean unknown: None."""
    megabits = int(text)
    return megabits * _BYTES_PER_MEGABIT if 0 < megabits < 0xFFFFFFFF else None


def _counter_series(counters: Mapping[str, InterfaceCounters], selected: Iterable[str]) -> Iterable[Series]:
    for name in (name for name in selected if name in counters):
        for field, each in _COUNTERS.items():
            yield Series(each, (name,), getattr(counters[name], field))


def _identity(name: str, device: str) -> Series:
    rdma_device = next(iter(names_or_empty(f"{device}/infiniband")), "")
    return sample("rankwatch_network_info", (name, driver_of(device), *pci_labels(device), rdma_device), 1)
