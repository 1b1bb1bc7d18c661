"""The fault file, which injects faults into a running job."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rankwatch_trainer.faults.file import FaultFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a fault file that does not exist yet."""
    return tmp_path / "faults"


def test_missing_file(path: Path) -> None:
    """It contains no faults and raises no error, because it may be created at any time."""
    assert FaultFile(path, 4).faults(1) == ()


def test_first_step_of_a_line(path: Path) -> None:
    """A line counts from the step in which it is first read. Lines added later do not change that."""
    file = FaultFile(path, 4)
    path.write_text("# injected by hand\n\nstraggler:rank=2\n")
    (straggler,) = file.faults(17)
    path.write_text("straggler:rank=2\nkill:rank=1,from=+3\n")
    unchanged, kill = file.faults(25)
    assert straggler.from_step == 17
    assert unchanged is straggler
    assert kill.from_step == 28


def test_removed_line(path: Path) -> None:
    """A fault ends when its line or the file is removed, so that a job can be healed."""
    file = FaultFile(path, 4)
    path.write_text("straggler:rank=2\nslow-data:rank=1\n")
    assert len(file.faults(1)) == 2
    path.write_text("slow-data:rank=1\n")
    assert [scheduled.fault.name for scheduled in file.faults(2)] == ["slow-data"]
    path.unlink()
    assert file.faults(3) == ()


def test_malformed_line(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is ignored and logged once, even if other lines change later and whatever bytes it contains."""
    file = FaultFile(path, 4)
    with caplog.at_level(logging.WARNING):
        path.write_bytes(b"gremlin:rank=1\n\xff\xfe\nstraggler:rank=2\n")
        assert len(file.faults(1)) == 1
        path.write_bytes(b"gremlin:rank=1\n\xff\xfe\nstraggler:rank=2\nslow-data:rank=0\n")
        assert len(file.faults(2)) == 2
    assert len(caplog.records) == 2
    assert "ignored a line of fault file" in caplog.text
    assert "no fault is called 'gremlin'" in caplog.text


def test_unreadable_file(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is ignored and logged, for example if the path is a directory."""
    path.mkdir()
    assert FaultFile(path, 4).faults(1) == ()
    assert "could not read fault file" in caplog.text
