"""Files that fail are asked seldom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankwatch_agent.sources.kernel_files import OutOfDescriptorsError
from rankwatch_agent.sources.rdma.sysfs import (
    MAX_FAILURES,
    RETRY_SECONDS,
    SysfsFiles,
    parse_counter,
    parse_physical_state,
    parse_rate,
    parse_state,
    parse_word,
)
from support.agent.process import ManualClock
from support.processes.exhaustion import no_descriptors


class CountingParser:
    """Counts how often a file was really read."""

    def __init__(self, parse: Callable[[bytes], int | None] = parse_counter) -> None:
        self.reads = 0
        self._parse = parse

    def __call__(self, text: bytes) -> int | None:
        self.reads += 1
        return self._parse(text)


def files(clock: ManualClock) -> SysfsFiles:
    return SysfsFiles(clock)


def test_a_file_that_keeps_failing_is_left_alone_for_a_while(tmp_path: Path) -> None:
    """Each refused query may write a line to the kernel's log."""
    clock = ManualClock()
    reader, parse, path = files(clock), CountingParser(), tmp_path / "symbol_error"
    path.write_text("N/A (no PMA)\n")
    for _ in range(10):
        assert reader.value(str(path), parse) is None
    assert parse.reads == MAX_FAILURES
    clock.now += RETRY_SECONDS
    for _ in range(10):
        assert reader.value(str(path), parse) is None
    assert parse.reads == MAX_FAILURES + 1
    path.write_text("7\n")
    clock.now += RETRY_SECONDS
    for _ in range(10):
        assert reader.value(str(path), parse) == 7
    assert parse.reads == MAX_FAILURES + 11


def test_a_file_that_fails_now_and_then_is_always_asked(tmp_path: Path) -> None:
    """An answer in between makes up for the failures before it."""
    reader, parse, path = files(ManualClock()), CountingParser(), tmp_path / "symbol_error"
    for text in ("N/A\n", "N/A\n", "1\n") * 3:
        path.write_text(text)
        reader.value(str(path), parse)
    assert parse.reads == 9


def test_failures_can_be_forgotten(tmp_path: Path) -> None:
    """A port that came up may answer now."""
    reader, parse, path = files(ManualClock()), CountingParser(), tmp_path / "symbol_error"
    path.write_text("N/A (no PMA)\n")
    for _ in range(MAX_FAILURES + 1):
        reader.value(str(path), parse)
    path.write_text("3\n")
    assert reader.value(str(path), parse) is None
    reader.forget_failures()
    assert reader.value(str(path), parse) == 3


def test_only_surprises_are_told(tmp_path: Path) -> None:
    """A value that firmware does not have is no surprise, garbage and a broken file system are; each once."""
    reader = files(ManualClock())
    (tmp_path / "refused").write_text("N/A (no PMA)\n")
    (tmp_path / "garbage").write_text("garbage\n")
    (tmp_path / "directory").mkdir()
    for name in ("refused", "garbage", "directory", "missing") * 2:
        assert reader.value(str(tmp_path / name), parse_counter) is None
    assert [str(error).partition(":")[0] for error in reader.take_errors()] == [
        f"could not use {tmp_path / name}" for name in ("garbage", "directory")
    ]
    assert reader.take_errors() == []


def test_a_driver_that_refuses_an_answer_is_no_surprise() -> None:
    """EINVAL, here from a real file of the kernel that cannot be read like this."""
    reader = files(ManualClock())
    assert reader.value("/proc/self/attr/current/x", parse_counter) is None
    assert reader.value("/sys/class/net/lo/speed", parse_counter) is None
    assert reader.take_errors() == []


def test_a_file_without_end_is_read_to_its_first_page() -> None:
    """Whatever lies under a name costs no more memory."""
    sizes: list[int] = []

    def measure(text: bytes) -> int:
        sizes.append(len(text))
        return 0

    files(ManualClock()).value("/dev/zero", measure)
    assert sizes == [4096]


def test_a_file_is_not_left_alone_because_the_agent_had_no_descriptors(tmp_path: Path) -> None:
    """Many scrapes at once would else cost counters for ten minutes."""
    reader, path = files(ManualClock()), tmp_path / "symbol_error"
    path.write_text("7\n")
    with no_descriptors():
        for _ in range(2 * MAX_FAILURES):
            with pytest.raises(OutOfDescriptorsError, match="Too many open files"):
                reader.value(str(path), parse_counter)
    assert reader.value(str(path), parse_counter) == 7


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
