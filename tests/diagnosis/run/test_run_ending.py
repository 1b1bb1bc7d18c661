"""How the boxes of a run tell its end, and its time left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rankwatch_agent.training.life.ends import write_kill
from rankwatch_diagnosis.goodput.from_boxes import read_folder
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.report import as_json, lines
from rankwatch_diagnosis.run.summary import summary_lines
from support.training.ranks import go_on, rank

pytestmark = pytest.mark.process

LINE = "Memory cgroup out of memory: Killed process 7 (python3) total-vm:1kB"


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


def test_time_left(tmp_path: Path) -> None:
    """Of a run with a target that goes on."""
    with rank(tmp_path, "steps(5, 0.02)\nready()") as process:
        assert any(" time left " in line for line in summary_lines(tmp_path))
        process.kill()
        process.wait()
        assert not any(" time left " in line for line in summary_lines(tmp_path))


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
