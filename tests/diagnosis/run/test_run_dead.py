"""Boxes that nobody writes any more: plain copies, dead runs, and ranks of an earlier attempt."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

import rankwatch
from rankwatch.conventions.vocabulary import Lifecycle
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.verdict import RunState
from support.diagnosis.run_boxes import RankBox, stalled_for
from support.training.ranks import rank


def copied(directory: Path) -> Path:
    """A plain copy of the run."""
    copy = directory / "copy"
    shutil.copytree(directory / "run" / "job", copy)
    return copy


def test_copy_of_healthy_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no stall: who was caught waiting had waited for milliseconds at the time of the copy."""
    stalled_for(tmp_path / "run", 0.02)
    copy = copied(tmp_path)
    real = time.time
    monkeypatch.setattr("time.time", lambda: real() + 100.0)
    verdict = diagnose_run(copy, stall=5.0)
    assert (verdict.state, verdict.ranks, verdict.hang.ranks) == (RunState.ENDED, (), ())


@pytest.mark.parametrize("seconds", [8.0, 800.0])
def test_copy_of_stalled_run(seconds: float, tmp_path: Path) -> None:
    """It names its root cause, however soon after the stall it is made; a dead run by its last words."""
    stalled_for(tmp_path / "run", seconds)
    verdict = diagnose_run(copied(tmp_path), stall=5.0)
    assert (verdict.state, verdict.ranks) == (RunState.STALLED, (1,))


def test_copy_with_failed_rank(tmp_path: Path) -> None:
    """It calls nobody lost: that nobody holds the lock of a copy says nothing."""
    boxes = stalled_for(tmp_path / "run", 0.5)
    boxes[1].says(Lifecycle.FAILED, 0.4, "ZeroDivisionError")
    verdict = diagnose_run(copied(tmp_path), stall=5.0)
    assert (verdict.state, verdict.ranks) == (RunState.FAILED, (1,))


def test_copy_with_terminated_rank(tmp_path: Path) -> None:
    """It calls nobody lost while a launcher sends SIGTERM to one rank after the other."""
    stalled_for(tmp_path / "run", 0.5)
    (tmp_path / "run" / "job" / "1.terminated").write_text("stacks")
    assert diagnose_run(copied(tmp_path), stall=5.0).state is not RunState.LOST


def test_first_failure_of_dead_run(tmp_path: Path) -> None:
    """The rank that failed by itself is named, not those that a launcher killed after it."""
    boxes = stalled_for(tmp_path, 100.0)
    boxes[1].says(Lifecycle.FAILED, 99.0, "ZeroDivisionError")
    verdict = diagnose_run(tmp_path)
    assert (verdict.state, verdict.ranks) == (RunState.FAILED, (1,))


def failed_in_collective(directory: Path) -> list[RankBox]:
    """Three ranks, of which rank 0 failed in the collective to which rank 1 had not come."""
    boxes = stalled_for(directory, 100.0)
    boxes[0].completes(6, 100.0, 99.0, failed=True)
    boxes[0].enqueues(6)
    boxes[0].says(Lifecycle.FAILED, 99.0, "RuntimeError")
    return boxes


def test_interrupted_run(tmp_path: Path) -> None:
    """A run that its user stopped is no failed one, unless a rank had failed by itself before."""
    boxes = failed_in_collective(tmp_path)
    boxes[1].says(Lifecycle.INTERRUPTED, 99.0)
    (tmp_path / "job" / "2.terminated").write_text("stacks")
    verdict = diagnose_run(tmp_path)
    assert (verdict.state, verdict.ranks) == (RunState.INTERRUPTED, ())
    boxes[2].says(Lifecycle.FAILED, 98.0, "ZeroDivisionError")
    verdict = diagnose_run(tmp_path)
    assert (verdict.state, verdict.ranks) == (RunState.FAILED, (2,))


def test_failed_single_rank(tmp_path: Path) -> None:
    """The exception is shown with its message. No other rank is spoken of."""
    with pytest.raises(ValueError), rankwatch.start(run="job", directory=tmp_path) as run:
        with run.step():
            pass
        raise ValueError("bad batch 7")
    verdict = diagnose_run(tmp_path)
    assert verdict.why == "ended by ValueError: bad batch 7"
    assert verdict.ranks_seen[0]["failure_message"] == "bad batch 7"


def test_failed_in_collective(tmp_path: Path) -> None:
    """A rank that failed in a collective is not waited for: a peer was gone, here one ended by SIGTERM."""
    failed_in_collective(tmp_path)
    (tmp_path / "job" / "1.terminated").write_text("stacks")
    (tmp_path / "job" / "2.terminated").write_text("stacks")
    verdict = diagnose_run(tmp_path)
    assert (verdict.state, verdict.ranks) == (RunState.FAILED, ())
    assert 0 not in verdict.hang.ranks


@pytest.mark.process
def test_box_of_earlier_attempt(tmp_path: Path) -> None:
    """It is no lost rank of the present one: ranks on their way have only the boxes of dead processes."""
    stalled_for(tmp_path, 8.0)
    with rank(tmp_path, "ready()", world=3):
        verdict = diagnose_run(tmp_path, stall=5.0)
    assert (verdict.state, verdict.ranks) == (RunState.STARTING, ())
    assert verdict.sources["boxes_skipped"] == {"of an earlier attempt": 2}


@pytest.mark.process
def test_died_before_taking_part(tmp_path: Path) -> None:
    """A rank that died before it did anything with the others is lost, however early they began."""
    RankBox(tmp_path, 1)
    with rank(tmp_path, "ready()", world=3):
        verdict = diagnose_run(tmp_path)
    assert (verdict.state, verdict.ranks) == (RunState.LOST, (1,))


def test_all_ranks_failed(tmp_path: Path) -> None:
    """Where each rank has an exception of its own, none of them in a collective, that is the reason."""
    for box in stalled_for(tmp_path, 100.0):
        box.says(Lifecycle.FAILED, 99.0, "UsageError")
    verdict = diagnose_run(tmp_path)
    assert (verdict.state, verdict.ranks) == (RunState.FAILED, ())
    assert verdict.why == "each rank was ended by an exception of its own: UsageError"
