"""Files that fail are asked seldom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankwatch_agent.sources.kernel_files import ExhaustedError
from rankwatch_agent.sources.rdma.sysfs import PATIENCE, RETRY_SECONDS, SysfsFiles, parse_counter
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
    assert parse.reads == PATIENCE
    clock.now += RETRY_SECONDS
    for _ in range(10):
        assert reader.value(str(path), parse) is None
    assert parse.reads == PATIENCE + 1
    path.write_text("7\n")
    clock.now += RETRY_SECONDS
    for _ in range(10):
        assert reader.value(str(path), parse) == 7
    assert parse.reads == PATIENCE + 11


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
    for _ in range(PATIENCE + 1):
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
    assert [str(error).partition(":")[0] for error in reader.take_broken()] == [
        f"could not use {tmp_path / name}" for name in ("garbage", "directory")
    ]
    assert reader.take_broken() == []


def test_a_driver_that_refuses_an_answer_is_no_surprise() -> None:
    """EINVAL, here from a real file of the kernel that cannot be read like this."""
    reader = files(ManualClock())
    assert reader.value("/proc/self/attr/current/x", parse_counter) is None
    assert reader.value("/sys/class/net/lo/speed", parse_counter) is None
    assert reader.take_broken() == []


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
        for _ in range(2 * PATIENCE):
            with pytest.raises(ExhaustedError, match="Too many open files"):
                reader.value(str(path), parse_counter)
    assert reader.value(str(path), parse_counter) == 7
