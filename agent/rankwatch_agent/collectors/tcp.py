"""TCP segments sent and retransmitted, timeouts and listen drops, from /proc/net."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

from rankwatch.conventions import Metric, metric
from rankwatch_agent.collection import Collection, Series
from rankwatch_agent.collectors.node_net import node_net
from rankwatch_agent.collectors.parts import collect_parts
from rankwatch_agent.kernel_files import parse_kernel_file
from rankwatch_agent.supervision.log_limit import LogLimit
from rankwatch_agent.supervision.schedule import Schedule

_SNMP = {
    "OutSegs": metric("rankwatch_tcp_sent_segments_total"),
    "RetransSegs": metric("rankwatch_tcp_retransmitted_segments_total"),
}
_NETSTAT = {
    "TCPTimeouts": metric("rankwatch_tcp_timeouts_total"),
    "ListenDrops": metric("rankwatch_tcp_listen_drops_total"),
}


class TcpCollector:
    """Counters of the node that `procfs` belongs to."""

    name = "tcp"

    def __init__(self, *, procfs: Path, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._procfs = procfs
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Read both files; raises as collect_parts does."""
        return collect_parts(self.name, (self._snmp, self._netstat), self._log_limit)

    def _snmp(self) -> Iterable[Series]:
        counters = parse_kernel_file(
            node_net(self._procfs) / "snmp", lambda text: parse_protocol(text, "Tcp")
        )
        return _series(_SNMP, counters)

    def _netstat(self) -> Iterable[Series]:
        counters = parse_kernel_file(
            node_net(self._procfs) / "netstat", lambda text: parse_protocol(text, "TcpExt")
        )
        return _series(_NETSTAT, counters)


def parse_protocol(text: str, protocol: str) -> dict[str, int]:
    """One protocol of /proc/net/snmp or netstat: a line of names followed by a line of numbers."""
    start = f"{protocol}:"
    for names, numbers in pairwise(text.splitlines()):
        if names.startswith(start) and numbers.startswith(start):
            values = (int(number) for number in numbers.split()[1:])
            return dict(zip(names.split()[1:], values, strict=True))
    raise ValueError(f"no lines for {protocol}")


def _series(metrics: Mapping[str, Metric], counters: Mapping[str, int]) -> list[Series]:
    return [Series(each, (), counters[name]) for name, each in metrics.items() if name in counters]
