"""Which process writes a black box: what the kernel says, never what the file says."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rankwatch.blackbox import layout
from rankwatch_agent.incidents.bundle import EvidenceError
from rankwatch_agent.incidents.rank_state import writer_process
from support.training.blackbox import box
from support.training.ranks import rank

STAND = "steps(1)\nready()\ntime.sleep(1000)"


def test_the_process_is_the_one_that_holds_the_lock_whatever_the_header_says(tmp_path: Path) -> None:
    """A header can name init, or whom a training process wants stopped."""
    with rank(tmp_path, STAND) as process:
        path = box(tmp_path)
        header = path.read_bytes()[: layout.FIXED.size]
        fields = list(layout.FIXED.unpack(header))
        assert fields[13] == process.pid
        fields[13] = 1
        with path.open("r+b") as file:
            file.write(struct.pack("<4s", header[:4]) + layout.FIXED.pack(*fields)[4:])
        assert writer_process(path) == process.pid
        process.kill()
        process.wait()
        assert writer_process(path) is None


def test_a_copy_and_a_file_without_a_lock_have_no_process(tmp_path: Path) -> None:
    """And a link is not followed to one that has."""
    with rank(tmp_path, STAND):
        path = box(tmp_path)
        copy = path.with_name("9.blackbox")
        copy.write_bytes(path.read_bytes())
        assert writer_process(copy) is None
        link = path.with_name("8.blackbox")
        link.symlink_to(path)
        with pytest.raises(EvidenceError, match="could not open"):
            writer_process(link)
