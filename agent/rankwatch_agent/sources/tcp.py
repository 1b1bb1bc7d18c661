"""Collector `tcp`: segments sent and retransmitted, from /proc/net/snmp."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, Series, collect_parts
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.source import source
from rankwatch_agent.sources.kernel_files import Table, parse_count, parse_fields, parse_kernel_file
from rankwatch_agent.sources.network import node_network
from rankwatch_agent.sources.shared import NodeShared

_COLUMNS = {
    "OutSegs": metric("rankwatch_tcp_sent_segments_total"),
    "RetransSegs": metric("rankwatch_tcp_retransmitted_segments_total"),
}


@source(interval_seconds=5.0, deadline_seconds=5.0)
def tcp(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    yield TcpCollector(procfs=config.procfs, schedule=schedule)


class TcpCollector:
    """Reads the TCP counters of the node that `procfs` belongs to."""

    name = "tcp"

    def __init__(self, *, procfs: Path, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._procfs = procfs
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Read the file. Raises what collect_parts raises."""
        return collect_parts(self.name, (self._series,), self._log_limit)

    def _series(self) -> Iterator[Series | CollectError]:
        path = node_network(self._procfs) / "snmp"
        counters = parse_kernel_file(path, parse_snmp)
        yield from counters.errors(path)
        for name, value in counters.found.items():
            yield Series(_COLUMNS[name], (), value)


def parse_snmp(text: str) -> Table[str, int]:
    """Parse TCP's counters in /proc/net/snmp: a line of names, then a line of numbers.

    Raises ValueError where a line is missing or their lengths differ.
    """
    for names, numbers in pairwise(text.splitlines()):
        if names.startswith("Tcp:") and numbers.startswith("Tcp:"):
            # Some columns are not counts: MaxConn of Tcp is -1.
            columns = dict(zip(names.split()[1:], numbers.split()[1:], strict=True))
            return parse_fields(((name, columns[name]) for name in _COLUMNS if name in columns), parse_count)
    raise ValueError("no lines for Tcp")
