"""Collector `tcp`: segments sent and retransmitted, timeouts and listen drops, from /proc/net."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from rankwatch.conventions.metrics import Metric, metric
from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, Series, collect_parts
from rankwatch_agent.runtime.config import AgentConfig, source
from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.sources.kernel_files import Table, parse_count, parse_fields, parse_kernel_file
from rankwatch_agent.sources.network import node_network
from rankwatch_agent.sources.shared import Shared

_SNMP = {
    "OutSegs": metric("rankwatch_tcp_sent_segments_total"),
    "RetransSegs": metric("rankwatch_tcp_retransmitted_segments_total"),
}
_NETSTAT = {
    "TCPTimeouts": metric("rankwatch_tcp_timeouts_total"),
    "ListenDrops": metric("rankwatch_tcp_listen_drops_total"),
}


@source(interval_seconds=5.0, deadline_seconds=5.0)
def tcp(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    yield TcpCollector(procfs=config.procfs, schedule=schedule)


class TcpCollector:
    """Reads the TCP counters of the node that `procfs` belongs to."""

    name = "tcp"

    def __init__(self, *, procfs: Path, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._procfs = procfs
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Reads both files. Raises what collect_parts raises."""
        directory = node_network(self._procfs)
        parts = (
            lambda: _series(directory / "snmp", "Tcp", _SNMP),
            lambda: _series(directory / "netstat", "TcpExt", _NETSTAT),
        )
        return collect_parts(self.name, parts, self._log_limit)


def parse_protocol(text: str, protocol: str, wanted: Iterable[str]) -> Table[str, int]:
    """Parses one protocol of /proc/net/snmp or netstat: a line of names, then a line of numbers.

    Raises ValueError where a line is missing or their lengths differ.
    """
    start = f"{protocol}:"
    for names, numbers in pairwise(text.splitlines()):
        if names.startswith(start) and numbers.startswith(start):
            # Some columns are not counts: MaxConn of Tcp is -1.
            columns = dict(zip(names.split()[1:], numbers.split()[1:], strict=True))
            return parse_fields(((name, columns[name]) for name in wanted if name in columns), parse_count)
    raise ValueError(f"no lines for {protocol}")


def _series(path: Path, protocol: str, metrics: Mapping[str, Metric]) -> Iterator[Series | CollectError]:
    counters = parse_kernel_file(path, lambda text: parse_protocol(text, protocol, metrics))
    yield from counters.errors(path)
    for name, value in counters.found.items():
        yield Series(metrics[name], (), value)
