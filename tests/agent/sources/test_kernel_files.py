"""Files of /proc and /sys, and other things in their place."""

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


def test_read_whole_file(tmp_path: Path) -> None:
    """Also several pages. Bytes that are not UTF-8 do not matter."""
    (tmp_path / "stat").write_bytes(b"x" * 100_000 + b"\xff")
    assert read_kernel_file(tmp_path / "stat") == "x" * 100_000 + "\ufffd"


def test_missing_or_broken_file(tmp_path: Path) -> None:
    """A kernel without the feature, a directory, a loop of links."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(NotApplicable, match="No such file"):
        read_kernel_file(tmp_path / "missing")
    with pytest.raises(CollectError, match="Is a directory"):
        read_kernel_file(tmp_path)
    with pytest.raises(CollectError, match="symbolic links"):
        read_kernel_file(tmp_path / "loop")


def test_fifo(tmp_path: Path) -> None:
    """It would block its collector for ever."""
    os.mkfifo(tmp_path / "mtu")
    with pytest.raises(CollectError, match="it is a FIFO"):
        read_kernel_file(tmp_path / "mtu")


def test_endless_file() -> None:
    """The agent's memory must not depend on what it reads."""
    with pytest.raises(CollectError, match=f"more than {MAX_FILE_BYTES} bytes"):
        read_kernel_file(Path("/dev/zero"))


def test_impossible_name(tmp_path: Path) -> None:
    """Names of interfaces come from another file."""
    for name in ("e\0h", "e" * 300):
        with pytest.raises(CollectError, match="could not read"):
            read_kernel_file(tmp_path / name)


def test_out_of_descriptors(tmp_path: Path) -> None:
    """The file may be readable a moment later."""
    (tmp_path / "mtu").write_text("1500\n")
    with no_descriptors(), pytest.raises(OutOfDescriptorsError, match="Too many open files"):
        read_kernel_file(tmp_path / "mtu")
    assert parse_kernel_file(tmp_path / "mtu", parse_count) == 1500


@pytest.mark.parametrize("text", ["-1", str(2**64), "9" * 400, "", "x"])
def test_invalid_counts(text: str) -> None:
    """A number of 400 digits would fail in every scrape."""
    with pytest.raises(ValueError):
        parse_count(text)
