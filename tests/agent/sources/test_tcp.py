"""The TCP collector and its parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.sources.tcp import TcpCollector, parse_snmp
from support.agent.process import values

SNMP = "Ip: Forwarding\nIp: 1\nTcp: MaxConn OutSegs RetransSegs\nTcp: -1 1508 7\nUdp: NoPorts\nUdp: 0\n"


@pytest.mark.parametrize("number", ["x", "-1", str(2**64), "1_0"])
def test_broken_number(number: str) -> None:
    """The other counters stay."""
    text = SNMP.replace("1508", number)
    assert parse_snmp(text) == ({"RetransSegs": 7}, ("OutSegs",))


@pytest.mark.parametrize("text", ["", "Tcp: A\n", "Tcp: A B\nTcp: 1\n", "TcpExt: A\nTcpExt: 1\n"])
def test_broken_content(text: str) -> None:
    """Names without numbers, more names than numbers, another protocol."""
    with pytest.raises(ValueError):
        parse_snmp(text)


def test_missing_counters(tmp_path: Path) -> None:
    """A missing counter is not 0."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net/snmp").write_text("Tcp: MaxConn OutSegs\nTcp: -1 1508\n")
    found = values([TcpCollector(procfs=tmp_path, schedule=Schedule(5, 5)).collect()])
    assert found == {("rankwatch_tcp_sent_segments_total",): 1508}
