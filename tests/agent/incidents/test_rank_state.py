"""Final states of ranks, and the process that writes a black box."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from rankwatch.blackbox import layout
from rankwatch.blackbox.records import GroupNow
from rankwatch_agent.incidents.rank_files import final_state, process_state
from rankwatch_agent.runtime.writers import writer_of
from support.incidents.incidents import boxed
from support.processes.users import ALICE
from support.training.blackbox import box
from support.training.ranks import kill, rank

pytestmark = pytest.mark.process


def test_final_state(tmp_path: Path) -> None:
    """Groups, open phase and last records, with their ages, also of a full ring, as every longer run has."""
    group = GroupNow(3, "mesh_tp", "0-3", 4, enqueued=17, oldest=195.0, operation="all_reduce")
    with rank(tmp_path, "steps(20000)\nwith run.phase('checkpoint'): pass\nready()"):
        condition = boxed(box(tmp_path), groups=(group,), open_phase=("backward", 190.0), last_progress=180.0)
        lines = final_state(condition, 200.0).splitlines()
    assert lines[:4] == [
        "rank 0: running, 20.0 s without progress",
        "in phase backward for 10.0 s",
        "group mesh_tp (0-3): 17 enqueued, last all_reduce, one waits for 5.0 s",
        "the last 20 records, the newest first:",
    ]
    assert len(lines) == 24 and "phase checkpoint" in lines[4] and "step" in lines[5]


def test_control_characters_are_replaced(tmp_path: Path) -> None:
    """Names in a black box or of a process must not steer a terminal."""
    with rank(tmp_path / "boxes", "steps(1)\nready()"):
        condition = boxed(box(tmp_path / "boxes"), open_phase=("\x1b[2Jforward", 190.0))
        assert "in phase ?[2Jforward" in final_state(condition, 200.0)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\t\x1b]0;pwned\x07\nState:\tS\n")
    words = process_state(tmp_path, 7)
    assert words.startswith("== status\nName:\t?]0;pwned?\nState:\tS\n== wchan\n(")


def test_largest_ring(tmp_path: Path) -> None:
    """The last records of the largest ring that is read are found."""
    with rank(tmp_path, "steps(1)\nready()"):
        condition = boxed(box(tmp_path))
    content = bytearray(condition.path.read_bytes())
    capacity = layout.MAX_CAPACITY
    fields = list(layout.FIXED.unpack_from(content))
    fields[5], fields[9] = capacity, layout.RING_OFFSET + capacity * layout.RECORD_SIZE
    layout.FIXED.pack_into(content, 0, *fields)
    ring = np.zeros(
        capacity, [("kind", "<u8"), ("start", "<f8"), ("end", "<f8"), ("number", "<u8"), ("rest", "V32")]
    )
    ring["kind"] = layout.RecordKind.PHASE << layout.NAME_BITS
    ring["start"] = ring["end"] = 1.0
    ring["number"] = np.arange(capacity)
    condition.path.chmod(0o644)
    condition.path.write_bytes(bytes(content[: layout.RING_OFFSET]) + ring.tobytes())
    assert "the last 20 records, the newest first:" in final_state(condition, 200.0)


def test_missing_box(tmp_path: Path) -> None:
    """The rest of the final state is known already."""
    with rank(tmp_path, "steps(1)\nready()"):
        condition = boxed(box(tmp_path))
    condition.path.unlink()
    assert "its records cannot be read: could not open" in final_state(condition, 200.0)


def test_no_lock_no_process(tmp_path: Path) -> None:
    """And a link to a locked file is refused."""
    with rank(tmp_path, STAND):
        path = box(tmp_path)
        copy, link = path.with_name("9.blackbox"), path.with_name("8.blackbox")
        copy.write_bytes(path.read_bytes())
        link.symlink_to(path)
        assert (writer_of(copy), writer_of(link)) == (None, None)


STAND = "steps(1)\nready()\ntime.sleep(1000)"


def test_writer_is_the_lock_holder(tmp_path: Path) -> None:
    """The header is untrusted: it can name init or another job's process."""
    with rank(tmp_path, STAND) as process:
        path = box(tmp_path)
        header = path.read_bytes()[: layout.FIXED.size]
        fields = list(layout.FIXED.unpack(header))
        assert fields[13] == process.pid
        fields[13] = 1
        path.chmod(0o644)
        with path.open("r+b") as file:
            file.write(struct.pack("<4s", header[:4]) + layout.FIXED.pack(*fields)[4:])
        assert writer_of(path) == process.pid
        kill(process)
        assert writer_of(path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
def test_lock_of_a_process_of_another_user(tmp_path: Path) -> None:
    """The number of a writer that has ended may be that of a later process."""
    with rank(tmp_path, STAND):
        path = box(tmp_path)
        assert writer_of(path) is not None
        os.chown(path, ALICE, ALICE)
        assert writer_of(path) is None
