"""Boxes that nobody writes any more: plain copies, dead runs, and ranks of an earlier attempt."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from rankwatch.conventions import Lifecycle
from rankwatch_diagnosis.run.engine import RunState, diagnose_run
from support.diagnosis.run_boxes import RankBox, stalled_for
from support.training.ranks import rank


def copied(directory: Path) -> Path:
    """A plain copy of the run."""
    copy = directory / "copy"
    shutil.copytree(directory / "run" / "job", copy)
    return copy


def test_a_copy_of_a_healthy_run_is_no_stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was caught waiting had waited for milliseconds when they were copied, whenever that was."""
    stalled_for(tmp_path / "run", 0.02)
    copy = copied(tmp_path)
    real = time.time
    monkeypatch.setattr("time.time", lambda: real() + 100.0)
    verdict = diagnose_run(copy, stall=5.0)
    assert (verdict.state, verdict.ranks, verdict.hang.ranks) == (RunState.ENDED, (), ())


def test_a_copy_of_a_stalled_run_names_its_culprit(tmp_path: Path) -> None:
    """However soon after the stall it is made; and where the run was dead for long, by its last words."""
    stalled_for(tmp_path / "young" / "run", 8.0)
    stalled_for(tmp_path / "old" / "run", 800.0)
    for name in ("young", "old"):
        verdict = diagnose_run(copied(tmp_path / name), stall=5.0)
        assert (verdict.state, verdict.ranks) == (RunState.STALLED, (1,)), name


def test_a_copy_of_a_living_run_with_a_failed_rank_calls_nobody_lost(tmp_path: Path) -> None:
    """The others lived: that nobody holds the lock of a copy says nothing."""
    boxes = stalled_for(tmp_path / "run", 0.5)
    boxes[1].says(Lifecycle.FAILED, 0.4, "ZeroDivisionError")
    verdict = diagnose_run(copied(tmp_path), stall=5.0)
    assert (verdict.state, verdict.ranks) == (RunState.FAILED, (1,))


def test_a_copy_of_a_living_run_with_a_terminated_rank_calls_nobody_lost(tmp_path: Path) -> None:
    """As it is while a launcher sends SIGTERM to one after the other."""
    stalled_for(tmp_path / "run", 0.5)
    (tmp_path / "run" / "job" / "1.terminated").write_text("stacks")
    assert diagnose_run(copied(tmp_path), stall=5.0).state is not RunState.LOST


def test_of_a_dead_run_the_rank_that_failed_by_itself_is_named_and_not_those_killed_after_it(
    tmp_path: Path,
) -> None:
    """A launcher kills those that do not end; a lost rank explains only failures in collectives."""
    boxes = stalled_for(tmp_path, 100.0)
    boxes[1].says(Lifecycle.FAILED, 99.0, "ZeroDivisionError")
    verdict = diagnose_run(tmp_path)
    assert (verdict.state, verdict.ranks) == (RunState.FAILED, (1,))


def test_a_rank_that_failed_in_a_collective_is_not_waited_for(tmp_path: Path) -> None:
    """It had come to it: it failed because a peer was gone. Here one ended by SIGTERM."""
    boxes = stalled_for(tmp_path, 100.0)
    boxes[0].completes(6, 100.0, 99.0, failed=True)
    boxes[0].enqueues(6)
    boxes[0].says(Lifecycle.FAILED, 99.0, "RuntimeError")
    (tmp_path / "job" / "1.terminated").write_text("stacks")
    (tmp_path / "job" / "2.terminated").write_text("stacks")
    verdict = diagnose_run(tmp_path)
    assert verdict.state is RunState.FAILED
    assert verdict.ranks == ()
    assert 0 not in verdict.hang.ranks


def test_a_box_of_an_earlier_start_is_not_a_lost_rank_of_the_present_one(tmp_path: Path) -> None:
    """While the run starts again, ranks that are on their way have only the boxes of their dead processes."""
    stalled_for(tmp_path, 8.0)
    with rank(tmp_path, "ready()", world=3):
        verdict = diagnose_run(tmp_path, stall=5.0)
    assert (verdict.state, verdict.ranks) == (RunState.STARTING, ())
    assert verdict.sources["boxes_skipped"] == {"of an earlier attempt": 2}


def test_a_rank_that_died_before_it_did_anything_with_the_others_is_lost(tmp_path: Path) -> None:
    """Whether they began before or after its end."""
    RankBox(tmp_path, 1)
    with rank(tmp_path, "ready()", world=3):
        verdict = diagnose_run(tmp_path)
    assert (verdict.state, verdict.ranks) == (RunState.LOST, (1,))
