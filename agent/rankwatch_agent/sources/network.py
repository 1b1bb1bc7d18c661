"""Bytes, errors, drops, link state, speed and identity of network interfaces.

Counters come from one read of /proc/net/dev. `speed` in sysfs takes the kernel's RTNL lock, on busy
nodes for seconds, so it is read when an interface is first seen and after its carrier has changed. The other
files of sysfs that are read here (operstate, mtu, carrier_changes, carrier_down_count) do not take it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Collection, Series
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.supervision.log_limit import LogLimit
from rankwatch_agent.runtime.supervision.schedule import Schedule
from rankwatch_agent.sources.kernel_files import (
    EXHAUSTED,
    ExhaustedError,
    Table,
    names_or_none,
    parse_count,
    parse_kernel_file,
    parse_lines,
)
from rankwatch_agent.sources.parts import Part, collect_parts
from rankwatch_agent.sources.topology.pci_device import driver_of, locate


@dataclass(frozen=True, kw_only=True)
class InterfaceChoice:
    """Globs over interface names; `include` empty means those with hardware behind them."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ("lo",)

    def choose(self, names: Iterable[str], physical: frozenset[str]) -> list[str]:
        """The names to watch, sorted; `physical` are those with a device behind them.

        Where nothing physical is to be seen, as in a pod with its own network namespace, all that
        is not excluded is watched: it is the only sign of traffic there.
        """
        left = sorted(name for name in names if not _matches(name, self.exclude))
        if self.include:
            return [name for name in left if _matches(name, self.include)]
        return [name for name in left if name in physical] or left


def _matches(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def node_net(procfs: Path) -> Path:
    """`procfs`/1/net: the network of the node's first process, also for an agent in a pod's namespace.

    `procfs`/net, the reader's own network, where that one cannot be read.
    """
    first = procfs / "1" / "net"
    try:
        with (first / "dev").open("rb"):
            return first
    except OSError as error:
        if error.errno in EXHAUSTED:  # not the other network for want of a file descriptor
            return first
        return procfs / "net"


_COUNTERS = {
    "receive_bytes": metric("rankwatch_network_receive_bytes_total"),
    "transmit_bytes": metric("rankwatch_network_transmit_bytes_total"),
    "receive_errors": metric("rankwatch_network_receive_errors_total"),
    "transmit_errors": metric("rankwatch_network_transmit_errors_total"),
    "receive_drops": metric("rankwatch_network_receive_drops_total"),
    "transmit_drops": metric("rankwatch_network_transmit_drops_total"),
}
_CARRIER_CHANGES = metric("rankwatch_network_carrier_changes_total")
_FLAPS = metric("rankwatch_network_link_flaps_total")
_MTU = metric("rankwatch_network_mtu_bytes")
_INFO = metric("rankwatch_network_info")
_UP = metric("rankwatch_network_up")
_SPEED = metric("rankwatch_network_speed_bytes")

_STATES = ("up", "down", "unknown", "notpresent", "lowerlayerdown", "testing", "dormant")
"""As the kernel writes them (`operstates` in net/core/net-sysfs.c)."""
_BYTES_PER_MEGABIT = 1_000_000 / 8


class InterfaceCounters(NamedTuple):
    """Counters of one interface since it was created."""

    receive_bytes: int
    receive_errors: int
    receive_drops: int
    transmit_bytes: int
    transmit_errors: int
    transmit_drops: int


class _KnownSpeed(NamedTuple):
    """Speed in bytes per second, and the count of carrier changes at which it was read."""

    carrier_changes: int
    bytes_per_second: float | None


class NetworkCollector:
    """The interfaces that `choice` picks, of the node that `procfs` and `sysfs` belong to."""

    name = "network"

    def __init__(self, *, procfs: Path, sysfs: Path, choice: InterfaceChoice, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._procfs = procfs
        self._classes = sysfs / "class" / "net"
        self._choice = choice
        self._speeds: dict[str, _KnownSpeed] = {}
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Read the chosen interfaces; raises CollectError, or NotApplicable where there is none."""
        counters, errors = self._counters()
        # Where a line is garbled, so may be its name: sysfs knows the interface as well.
        names = sorted({*counters, *(names_or_none(str(self._classes)) if errors else ())})
        physical = frozenset(name for name in names if os.path.lexists(self._classes / name / "device"))
        chosen = self._choice.choose(names, physical)
        self._speeds = {name: speed for name, speed in self._speeds.items() if name in chosen}
        of_each = (part for name in chosen for part in self._parts(name, name in physical))
        parts: list[Part] = [lambda: errors, lambda: _counter_series(counters, chosen), *of_each]
        return collect_parts(self.name, parts, self._log_limit)

    def _counters(self) -> tuple[Mapping[str, InterfaceCounters], list[CollectError]]:
        """Of every interface, and what is wrong with single lines; raises as parse_kernel_file does, and
        CollectError where no line can be read: that is no matter of one interface."""
        path = node_net(self._procfs) / "dev"
        table = parse_kernel_file(path, parse_net_dev)
        errors = table.errors(path)
        if errors and not table.found:
            raise errors[0]
        return table.found, errors

    def _parts(self, name: str, physical: bool) -> Iterator[Part]:
        """What sysfs tells of one interface, each file by itself."""
        directory = self._classes / name
        yield lambda: [Series(_UP, (name,), parse_kernel_file(directory / "operstate", parse_operstate))]
        yield lambda: self._carrier(name)
        yield lambda: [
            Series(_FLAPS, (name,), parse_kernel_file(directory / "carrier_down_count", parse_count))
        ]
        yield lambda: [Series(_MTU, (name,), parse_kernel_file(directory / "mtu", parse_count))]
        if physical:
            yield lambda: [_identity(name, str(directory / "device"))]

    def _carrier(self, name: str) -> Iterator[Series]:
        """The speed goes with it: without the count of changes it could not be kept up to date."""
        changes = parse_kernel_file(self._classes / name / "carrier_changes", parse_count)
        yield Series(_CARRIER_CHANGES, (name,), changes)
        speed = self._speed(name, changes)
        if speed is not None:
            yield Series(_SPEED, (name,), speed)

    def _speed(self, name: str, carrier_changes: int) -> float | None:
        known = self._speeds.get(name)
        if known is None or known.carrier_changes != carrier_changes:
            try:
                known = _KnownSpeed(carrier_changes, self._read_speed(name))
            except ExhaustedError:
                raise
            except CollectError:  # told once; read again when the carrier has changed
                self._speeds[name] = _KnownSpeed(carrier_changes, None)
                raise
            self._speeds[name] = known
        return known.bytes_per_second

    def _read_speed(self, name: str) -> float | None:
        try:
            return parse_kernel_file(self._classes / name / "speed", parse_speed)
        except NotApplicable:  # many drivers have none, or none while the link is down
            return None


def parse_net_dev(text: str) -> Table[str, InterfaceCounters]:
    """/proc/net/dev: 8 columns of receive counters, then 8 of transmit counters, for each interface.

    Raises ValueError where its two lines of heading are missing.
    """
    return parse_lines(text, _parse_interface, heading=2)


def _parse_interface(line: str) -> tuple[str, InterfaceCounters]:
    # The name may itself hold a colon (an alias such as eth0:1).
    name, _, rest = line.rpartition(":")
    columns = [parse_count(column) for column in rest.split()]
    if not name.strip() or "/" in name or len(columns) < 16:
        raise ValueError(f"unexpected line {line!r:.100}")
    return name.strip(), InterfaceCounters(*columns[0:1], *columns[2:4], *columns[8:9], *columns[10:12])


def parse_operstate(text: str) -> float:
    """1 for `up`, 0 for every other state of RFC 2863; raises ValueError for what is none of them."""
    if text.strip() not in _STATES:
        raise ValueError(f"{text.strip()!r:.40} is no state of an interface")
    return float(text.strip() == "up")


def parse_speed(text: str) -> float | None:
    """`speed` in bytes per second out of megabits; None for the -1 and 4294967295 that mean unknown."""
    megabits = int(text)
    return megabits * _BYTES_PER_MEGABIT if 0 < megabits < 0xFFFFFFFF else None


def _counter_series(counters: Mapping[str, InterfaceCounters], chosen: Iterable[str]) -> Iterable[Series]:
    for name in (name for name in chosen if name in counters):
        for field, each in _COUNTERS.items():
            yield Series(each, (name,), getattr(counters[name], field))


def _identity(name: str, device: str) -> Series:
    place = locate(device)
    address = place.address if place is not None else ""
    numa_node = str(place.numa_node) if place is not None and place.numa_node is not None else ""
    rdma_device = next(iter(names_or_none(f"{device}/infiniband")), "")
    return Series(_INFO, (name, driver_of(device), address, numa_node, rdma_device), 1)
