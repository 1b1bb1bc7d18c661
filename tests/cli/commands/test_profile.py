"""`rankwatch profile`: leaves a request for a rank, and waits for its traces."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import rankwatch
from rankwatch import profiler, profiling
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.commands import profile


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> rankwatch.Run:
    """A living run `job` of rank 0."""
    assert torch.__version__  # the profiler is torch's, so torch has to be imported
    monkeypatch.setenv("RANKWATCH_DIR", str(tmp_path))
    monkeypatch.setenv("RANKWATCH_PROFILE_ON_SLOW", "2")
    monkeypatch.setattr(profiler, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(profiler, "_WINDOW_STEPS", 3)
    started = rankwatch.start(run="job", rank=0, world_size=2, collectives=False, flight_recorder=False)
    assert isinstance(started, rankwatch.Run)
    return started


def command(*arguments: str) -> subprocess.Popen[str]:
    """In a process of its own: a process does not see its own lock on a black box."""
    words = [sys.executable, "-m", "rankwatch_cli", "profile", "job", *arguments]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.process
def test_request_and_wait(run: rankwatch.Run, tmp_path: Path) -> None:
    """The request is left. With `--wait` each trace is printed once it is there."""
    waiting = command("--rank", "0", "--wait", "60")
    with run:
        while waiting.poll() is None:
            with run.step():
                time.sleep(0.005)
    asked, *traces = waiting.communicate()[0].splitlines()
    assert asked == f"asked rank 0 of run job; traces: {tmp_path}/job/0.profile"
    assert len(traces) == 2 and all(Path(each).exists() for each in traces)
    assert waiting.returncode == 0


@pytest.mark.process
def test_no_answer(run: rankwatch.Run, tmp_path: Path) -> None:
    """A run that does not profile gives no trace: one sentence, and status 1."""
    with run:
        asking = command("--rank", "0", "--wait", "0.2")
        said = asking.communicate()[1]
    assert profiling.request_path(tmp_path, "job", 0, os.geteuid()).exists()
    assert said == "no trace has appeared; was the run started with --profile-on-slow?\n"
    assert asking.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["job", "--rank", "1"], "rank 1 of run job has no black box on this node"),
        (["job", "--rank", "0", "--wait", "0"], "--wait is 0.0, expected seconds above 0"),
        (["job"], r"nothing names a rank of run job here \(.*\): give --rank"),
    ],
)
def test_mistakes(run: rankwatch.Run, arguments: list[str], sentence: str) -> None:
    """One sentence each."""
    with run, pytest.raises(UserError, match=sentence):
        profile.main(arguments)


def test_ended_rank(run: rankwatch.Run) -> None:
    """Nobody answers any more: one sentence."""
    run.finish()
    with pytest.raises(UserError, match="rank 0 of run job is not running"):
        profile.main(["job", "--rank", "0"])
