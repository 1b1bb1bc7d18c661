"""Boxes that nobody writes any more: copies, dead runs, earlier attempts, and what tells the end of a run."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import rankwatch
from rankwatch.conventions.vocabulary import Lifecycle
from rankwatch_agent.training.life.ends import write_kill
from rankwatch_diagnosis.goodput.from_boxes import read_folder
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.report import as_json, lines
from rankwatch_diagnosis.run.summary import summary_lines
from rankwatch_diagnosis.run.verdict import RunState
from support.diagnosis.run_boxes import RankBox, stalled_for
from support.training.ranks import go_on, rank


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


LINE = "Memory cgroup out of memory: Killed process 7 (python3) total-vm:1kB"


@pytest.mark.process
def test_root_cause(tmp_path: Path) -> None:
    """The rank that failed by itself, and not the one that was killed because of it."""
    with (
        rank(tmp_path, "steps(3)\nready()", number=0, world=2) as other,
        rank(tmp_path, "steps(3)\nready()\nraise FloatingPointError('loss')", number=1, world=2) as failing,
    ):
        go_on(failing)
        failing.wait()
        other.terminate()
        other.wait()
        card = "\n".join(summary_lines(tmp_path))
    assert "ended        failed, non_finite on rank 1 (FloatingPointError: loss)" in card


@pytest.mark.process
def test_killed_by_the_kernel(tmp_path: Path) -> None:
    """The line that the agent has kept beside the box is in the card and in the verdict."""
    with rank(tmp_path, "steps(3)\nready()") as process:
        process.kill()
        process.wait()
        write_kill(tmp_path / "job" / "0.blackbox", os.geteuid(), LINE)
        card = "\n".join(summary_lines(tmp_path))
        report = " ".join(" ".join(lines(diagnose_run(tmp_path))).split())
    assert f"ended        failed, host_out_of_memory (SIGKILL: {LINE})" in card
    assert "the kernel" in report or "gone" in report


@pytest.mark.process
def test_time_left(tmp_path: Path) -> None:
    """Of a run with a target that goes on."""
    with rank(tmp_path, "steps(5, 0.02)\nready()") as process:
        assert any(" time left " in line for line in summary_lines(tmp_path))
        process.kill()
        process.wait()
        assert not any(" time left " in line for line in summary_lines(tmp_path))


@pytest.mark.process
def test_earlier_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended an attempt is known after two more: the kernel's line and torchrun's error file go along."""
    error = tmp_path / "error.json"
    error.write_text(json.dumps({"message": {"message": "ValueError: bad shard", "extraInfo": {}}}))
    _attempt(tmp_path, monkeypatch, 0, "os.kill(os.getpid(), signal.SIGKILL)")
    write_kill(tmp_path / "job" / "0.blackbox", os.geteuid(), LINE)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(error))
    _attempt(tmp_path, monkeypatch, 1, "os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    _attempt(tmp_path, monkeypatch, 2, "run.finish()")
    card = "\n".join(summary_lines(tmp_path))
    verdict = diagnose_run(tmp_path)
    ended: Any = as_json(verdict)["ended_attempts"]
    first, second, third = ended
    assert (first["outcome"], first["kind"], first["kernel_line"]) == ("failed", "host_out_of_memory", LINE)
    assert (second["exception"], second["message"]) == ("ValueError", "bad shard")
    assert third["outcome"] == "finished"
    assert "before       attempt 2 failed, exception (ValueError); attempt 1 failed, host_out_of" in card
    assert f"attempt 1    failed, host_out_of_memory (SIGKILL: {LINE})" in list(lines(verdict))
    assert [each.ended_how for each in read_folder(tmp_path / "job").attempts] == [
        f"failed, host_out_of_memory (SIGKILL: {LINE})",
        "failed, exception (ValueError: bad shard)",
        "finished",
    ]


def _attempt(directory: Path, monkeypatch: pytest.MonkeyPatch, number: int, end: str) -> None:
    monkeypatch.setenv("RANKWATCH_ATTEMPT", str(number))
    with rank(directory, f"steps(3)\nready()\n{end}") as process:
        go_on(process)
        process.wait()
