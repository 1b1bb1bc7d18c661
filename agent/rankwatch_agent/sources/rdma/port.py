"""One port of an RDMA device: identity, state, speed, counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import CollectError, Series
from rankwatch_agent.sources.rdma.classes import TOTALS
from rankwatch_agent.sources.rdma.counters import counter_series, read_counters
from rankwatch_agent.sources.rdma.identity import PortIdentity, read_identity
from rankwatch_agent.sources.rdma.sysfs_files import SysfsFiles
from rankwatch_agent.sources.rdma.values import parse_physical_state, parse_rate, parse_state, parse_word

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
