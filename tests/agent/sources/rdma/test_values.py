"""What the files of a port say, on literals."""

from __future__ import annotations

import pytest

from rankwatch_agent.sources.rdma.sysfs import (
    parse_counter,
    parse_physical_state,
    parse_rate,
    parse_state,
    parse_word,
)


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        (b"400 Gb/sec (4X NDR)\n", 50e9),
        (b"2.5 Gb/sec (1X SDR)\n", 312.5e6),
        (b"100 Gb/sec\n", 12.5e9),
        (b"0 Gb/sec\n", None),
    ],
)
def test_a_rate_is_in_bytes_per_second(text: bytes, bytes_per_second: float | None) -> None:
    """The width and the generation stand behind it; a speed of 0 says nothing."""
    assert parse_rate(text) == bytes_per_second


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"400", b"400 Mb/sec", b"fast Gb/sec", b"nan Gb/sec", b"-1 Gb/sec", b"inf Gb/sec"]
)
def test_an_odd_rate_is_rejected(text: bytes) -> None:
    """Another unit must not be taken for gigabits."""
    with pytest.raises(ValueError):
        parse_rate(text)


def test_states_have_the_names_of_the_kernels_numbers() -> None:
    """By number, as the text differs between kernels; a number unknown here says nothing."""
    assert [parse_state(b"%d: X\n" % number) for number in range(7)] == [
        "nop",
        "down",
        "init",
        "armed",
        "active",
        "active_defer",
        None,
    ]
    assert parse_physical_state(b"5: LinkUp\n") == "link_up"
    assert parse_physical_state(b"2: Polling\n") == "polling"
    assert parse_physical_state(b"8: <unknown>\n") is None
    with pytest.raises(ValueError):
        parse_state(b"ACTIVE\n")


def test_a_counter_that_is_not_known_is_none() -> None:
    """Firmware without the counter, and all bits set."""
    assert parse_counter(b"18446744073709551614\n") == 2**64 - 2
    assert [parse_counter(text) for text in (b"N/A (no PMA)\n", b"18446744073709551615\n")] == [None, None]


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"-1\n", b"1e3\n", b"0x10\n", b"18446744073709551616\n", b"\xff"]
)
def test_what_is_no_counter_is_rejected(text: bytes) -> None:
    """Nor is a number that does not fit into 64 bits."""
    with pytest.raises(ValueError):
        parse_counter(text)


def test_a_word_is_never_empty() -> None:
    """Bytes that are no UTF-8 are replaced."""
    assert parse_word(b" MT4129 \n") == "MT4129"
    assert parse_word(b"\xff\n") == "\ufffd"
    assert parse_word(b"\n") is None
