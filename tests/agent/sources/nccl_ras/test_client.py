"""Addresses of RAS services: which are valid, and which are local to every node."""

from __future__ import annotations

import pytest

from rankwatch.settings import FieldError
from rankwatch_agent.sources.nccl_ras.client import Address, parse_addresses


def test_auto_address() -> None:
    """It is NCCL's default, and each service counts once."""
    assert parse_addresses(("auto", "localhost:28028", "10.0.0.1:5")) == (
        Address("localhost", 28028),
        Address("10.0.0.1", 5),
    )


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
