"""An RDMA device: its ports, and the counters that belong to no port."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rankwatch_agent.runtime.collector import CollectError, Series
from rankwatch_agent.sources.rdma.counters import counter_series, read_counters
from rankwatch_agent.sources.rdma.port import RdmaPort
from rankwatch_agent.sources.rdma.sysfs_files import SysfsFiles
from rankwatch_agent.sources.topology.listing import list_names

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
