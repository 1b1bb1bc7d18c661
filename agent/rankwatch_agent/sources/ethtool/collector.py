"""Collector `ethtool`: pause frames, discards and hardware errors, from the statistics of network drivers.

Each read takes the kernel's RTNL lock and asks the device, so it runs less often than the counters of
`network`, and only for interfaces that `choice` picks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rankwatch_agent.runtime.collector import CollectError, Collection, NotApplicable, Series
from rankwatch_agent.runtime.supervision.log_limit import LogLimit
from rankwatch_agent.runtime.supervision.schedule import Schedule
from rankwatch_agent.sources.ethtool.driver_statistics import DriverStatistics
from rankwatch_agent.sources.ethtool.same_interface import check_same_interface, interface_version
from rankwatch_agent.sources.ethtool.table import Statistic, select
from rankwatch_agent.sources.interface_choice import InterfaceChoice
from rankwatch_agent.sources.parts import collect_parts
from rankwatch_agent.sources.topology.listing import list_names


class _Selection(NamedTuple):
    """What an interface's driver has, as long as the interface stays what it was."""

    version: tuple[str, str]
    size: int
    """Number of all its statistics."""
    chosen: Mapping[int, Statistic]


class EthtoolCollector:
    """Interfaces of `sysfs` in the network namespace of this process."""

    name = "ethtool"

    def __init__(
        self,
        *,
        sysfs: Path,
        choice: InterfaceChoice,
        schedule: Schedule,
        select: Callable[[Iterable[str]], Mapping[int, Statistic]] = select,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._classes = sysfs / "class" / "net"
        self._choice = choice
        self._select = select
        self._selections: dict[str, _Selection] = {}
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Read the chosen interfaces; raises NotApplicable where none has such statistics, CollectError."""
        names = [name for name in list_names(str(self._classes)) if (self._classes / name).is_dir()]
        physical = frozenset(name for name in names if os.path.lexists(self._classes / name / "device"))
        chosen = self._choice.choose(names, physical)
        self._selections = {name: known for name, known in self._selections.items() if name in chosen}
        with _any_socket() as asked_over:
            parts = [lambda name=name: self._series(asked_over, name) for name in chosen]
            return collect_parts(self.name, parts, self._log_limit)

    def _series(self, asked_over: socket.socket, interface: str) -> Iterator[Series]:
        statistics = DriverStatistics(asked_over, interface)
        selection = self._selection(asked_over, interface, statistics)
        values = statistics.values(selection.size)
        if len(values) != selection.size:  # the names no longer fit
            del self._selections[interface]
            selection = self._selection(asked_over, interface, statistics)
            values = statistics.values(selection.size)
            if len(values) != selection.size:
                raise CollectError(f"the statistics of {interface} keep changing")
        for place, each in selection.chosen.items():
            yield Series(each.metric, (interface, *each.labels), values[place] * each.factor)

    def _selection(
        self, asked_over: socket.socket, interface: str, statistics: DriverStatistics
    ) -> _Selection:
        directory = self._classes / interface
        version = interface_version(directory)
        known = self._selections.get(interface)
        if known is None or known.version != version:
            check_same_interface(asked_over, directory)
            names = statistics.names()
            known = _Selection(version, len(names), self._select(names))
            self._selections[interface] = known
        if not known.chosen:
            raise NotApplicable(f"{interface} has no statistics of pauses or discards")
        return known


def _any_socket() -> socket.socket:
    """The kind does not matter; every network namespace has this one. Raises CollectError."""
    try:
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    except OSError as error:
        raise CollectError(f"could not open a socket: {error.strerror or error}") from None
