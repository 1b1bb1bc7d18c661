"""The trainer's entry point, before torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rankwatch
import rankwatch_trainer
from rankwatch_trainer.__main__ import main
from support.jobs.trainer import DEADLINE_SECONDS


@pytest.mark.process
def test_missing_torch() -> None:
    """One sentence says what to install, and the exit status is 2. `python -S` hides the installed torch."""
    roots = [str(Path(package.__file__ or "").parents[1]) for package in (rankwatch, rankwatch_trainer)]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "rankwatch_trainer", "--help"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "rankwatch_trainer: could not import torch: "
        "in a clone of rankwatch, pip install '.[trainer]' brings it\n"
    )


@pytest.mark.parametrize(("given", "kept"), [(None, "ERROR"), ("INFO", "INFO")])
def test_log_level_of_torch(monkeypatch: pytest.MonkeyPatch, given: str | None, kept: str) -> None:
    """Torch logs only errors, unless the user sets a level: else each rank warns."""
    monkeypatch.setattr(sys, "argv", ["rankwatch_trainer", "--steps", "0"])
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", given or "")
    if given is None:
        monkeypatch.delenv("TORCH_CPP_LOG_LEVEL")
    assert main() == 2
    assert os.environ["TORCH_CPP_LOG_LEVEL"] == kept
