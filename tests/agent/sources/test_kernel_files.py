"""Files of /proc and /sys, and what may lie in their place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.kernel_files import (
    MAX_FILE_BYTES,
    OutOfDescriptorsError,
    parse_count,
    parse_kernel_file,
    read_kernel_file,
)
from support.processes.exhaustion import no_descriptors


def test_a_file_is_read_to_its_end(tmp_path: Path) -> None:
    """Also one of several pages; bytes that are no text do not matter."""
    (tmp_path / "stat").write_bytes(b"x" * 100_000 + b"\xff")
    assert read_kernel_file(tmp_path / "stat") == "x" * 100_000 + "\ufffd"


def test_a_missing_file_is_told_from_a_broken_one(tmp_path: Path) -> None:
    """A kernel without the feature; a directory; a loop of links."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(NotApplicable, match="No such file"):
        read_kernel_file(tmp_path / "missing")
    with pytest.raises(CollectError, match="Is a directory"):
        read_kernel_file(tmp_path)
    with pytest.raises(CollectError, match="symbolic links"):
        read_kernel_file(tmp_path / "loop")


def test_a_fifo_is_refused_without_waiting_for_its_other_end(tmp_path: Path) -> None:
    """Else one file would hold its collector for ever."""
    os.mkfifo(tmp_path / "mtu")
    with pytest.raises(CollectError, match="it is a FIFO"):
        read_kernel_file(tmp_path / "mtu")


def test_a_file_without_end_is_refused() -> None:
    """The memory of the agent does not depend on what it reads."""
    with pytest.raises(CollectError, match=f"more than {MAX_FILE_BYTES} bytes"):
        read_kernel_file(Path("/dev/zero"))


def test_a_name_that_no_file_can_have_is_an_error_of_the_collector(tmp_path: Path) -> None:
    """Names of interfaces come out of another file."""
    for name in ("e\0h", "e" * 300):
        with pytest.raises(CollectError, match="could not read"):
            read_kernel_file(tmp_path / name)


def test_running_out_of_descriptors_is_told_from_a_failure_of_the_file(tmp_path: Path) -> None:
    """The file may be read a moment later."""
    (tmp_path / "mtu").write_text("1500\n")
    with no_descriptors(), pytest.raises(OutOfDescriptorsError, match="Too many open files"):
        read_kernel_file(tmp_path / "mtu")
    assert parse_kernel_file(tmp_path / "mtu", parse_count) == 1500


@pytest.mark.parametrize("text", ["-1", str(2**64), "9" * 400, "", "x"])
def test_what_the_kernel_cannot_have_counted_is_refused(text: str) -> None:
    """A number of 400 digits would fail in the answer to every scrape."""
    with pytest.raises(ValueError):
        parse_count(text)
