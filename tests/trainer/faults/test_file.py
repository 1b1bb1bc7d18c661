"""Faults given to a running job."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rankwatch_trainer.faults.file import FaultFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a fault file that does not exist yet."""
    return tmp_path / "faults"


def test_a_file_that_is_not_there_holds_no_fault(path: Path) -> None:
    """It may appear at any time."""
    assert FaultFile(path, 4).faults(1) == ()


def test_a_line_counts_from_the_step_in_which_it_is_first_seen(path: Path) -> None:
    """Lines added later do not move it."""
    file = FaultFile(path, 4)
    path.write_text("# injected by hand\n\nstraggler:rank=2\n")
    (straggler,) = file.faults(17)
    path.write_text("straggler:rank=2\nkill:rank=1,from=+3\n")
    unchanged, kill = file.faults(25)
    assert straggler.from_step == 17
    assert unchanged is straggler
    assert kill.from_step == 28


def test_a_fault_ends_when_its_line_or_its_file_goes(path: Path) -> None:
    """So a job can be healed."""
    file = FaultFile(path, 4)
    path.write_text("straggler:rank=2\nslow-data:rank=1\n")
    assert len(file.faults(1)) == 2
    path.write_text("slow-data:rank=1\n")
    assert [scheduled.fault.name for scheduled in file.faults(2)] == ["slow-data"]
    path.unlink()
    assert file.faults(3) == ()


def test_a_malformed_line_is_told_once_and_ignored(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also when other lines change, and whatever bytes it holds."""
    file = FaultFile(path, 4)
    with caplog.at_level(logging.WARNING):
        path.write_bytes(b"gremlin:rank=1\n\xff\xfe\nstraggler:rank=2\n")
        assert len(file.faults(1)) == 1
        path.write_bytes(b"gremlin:rank=1\n\xff\xfe\nstraggler:rank=2\nslow-data:rank=0\n")
        assert len(file.faults(2)) == 2
    assert len(caplog.records) == 2
    assert "ignored a line of fault file" in caplog.text
    assert "no fault is called 'gremlin'" in caplog.text


def test_a_file_that_cannot_be_read_is_told_and_ignored(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A directory in its place, for example."""
    path.mkdir()
    assert FaultFile(path, 4).faults(1) == ()
    assert "could not read fault file" in caplog.text
