"""Addresses of RAS services, and whose process answers on a connection."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankwatch.settings import FieldError
from rankwatch_agent.sources.nccl_ras.client import Address, Peer, parse_addresses, peer_of


def test_auto_address() -> None:
    """It is NCCL's default, and each service counts once."""
    expected = (Address("localhost", 28028), Address("10.0.0.1", 5))
    assert parse_addresses(("auto", "localhost:28028", "10.0.0.1:5")) == expected


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("localhost:1", True),
        ("LOCALHOST:1", True),
        ("127.0.0.5:1", True),
        ("[::1]:1", True),
        ("10.0.0.1:1", False),
        ("[fe80::1]:1", False),
        ("node-7:1", False),
    ],
)
def test_local_addresses(text: str, local: bool) -> None:
    """Whatever the spelling, which is kept."""
    (address,) = parse_addresses((text,))
    assert (address.local, str(address)) == (local, text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "off", "28028", "localhost", "localhost:", "localhost:0", "localhost:65536", ":1", "::1:5"),
        *("[::1:5", "a b:5", "a\n:5", "\u00fc:5", "a..b:5", "a" * 300 + ":5", "localhost:-1"),
        "localhost:\u0665",
    ],
)
def test_invalid_addresses(text: str) -> None:
    """The error names the setting."""
    with pytest.raises(FieldError, match="nccl_ras_address"):
        parse_addresses((text,))


def test_number_of_addresses_is_bounded() -> None:
    """Each costs a request to a whole job."""
    with pytest.raises(FieldError, match="at most 8"):
        parse_addresses(tuple(f"localhost:{port}" for port in range(1, 10)))


_PROC = Path("/proc")
_HEADING = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
)


@contextmanager
def connected(host: str, family: socket.AddressFamily, listen: str = "") -> Iterator[socket.socket]:
    """A connection that the other end, in this process, has accepted."""
    dual = listen == "::"
    listening_family = socket.AF_INET6 if dual else family
    with socket.create_server((listen or host, 0), family=listening_family, dualstack_ipv6=dual) as server:
        port = server.getsockname()[1]
        with socket.create_connection((host, port)) as ours, server.accept()[0]:
            yield ours


@pytest.mark.parametrize(
    ("host", "family", "listen"),
    [
        ("127.0.0.1", socket.AF_INET, ""),
        ("127.0.0.1", socket.AF_INET, "0.0.0.0"),
        ("127.0.0.1", socket.AF_INET, "::"),
        ("::1", socket.AF_INET6, ""),
    ],
)
def test_own_process(host: str, family: socket.AddressFamily, listen: str) -> None:
    """Found in the table of either family, wherever the service listens."""
    with connected(host, family, listen) as ours:
        assert peer_of(ours, _PROC) == Peer(on_node=True, user=os.geteuid())


def test_connection_that_nobody_accepted() -> None:
    """The kernel says user 0 of a socket that no process has, which is not root's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
    ):
        assert peer_of(ours, _PROC) == Peer(on_node=True, user=None)


@pytest.mark.parametrize(
    ("rest", "user"),
    [
        ("", None),
        ("01 00000000:00000000 00:00000000 00000000  1234        0 777 1\n", 1234),
        ("04 00000000:00000000 00:00000000 00000000     0        0 0 1\n", None),
        ("01 00000000:00000000 00:00000000 00000000     x        0 777 1\n", None),
        ("01\n", None),
    ],
    ids=["no table", "accepted", "left", "no number", "short"],
)
def test_written_table(tmp_path: Path, rest: str, user: int | None) -> None:
    """The own end has the same addresses the other way round. A line of another form says nothing."""
    net = tmp_path / "self" / "net"
    net.mkdir(parents=True)
    with connected("127.0.0.1", socket.AF_INET) as ours:
        there, here = (f"0100007F:{each[1]:04X}" for each in (ours.getpeername(), ours.getsockname()))
        own = f"   0: {here} {there} 01 00000000:00000000 00:00000000 00000000     5        0 778 1\n"
        if rest:
            (net / "tcp").write_text(f"{_HEADING}{own}   1: {there} {here} {rest}")
        assert peer_of(ours, tmp_path) == Peer(on_node=True, user=user)
