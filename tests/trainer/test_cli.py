"""The trainer's command line: before torch is imported, errors on several ranks, checks of its files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rankwatch
import rankwatch_trainer
from rankwatch_trainer.__main__ import main as start
from rankwatch_trainer.cli import main, require_writable_outputs
from rankwatch_trainer.config import TrainerConfig
from rankwatch_trainer.errors import UsageError
from support.jobs.trainer import DEADLINE_SECONDS


def mistaken(rank: int) -> list[float]:
    """The seconds for which a rank of two waits with the error that its arguments are wrong."""
    waited: list[float] = []
    environment = {"RANK": str(rank), "WORLD_SIZE": "2"}
    assert main(["--fault", "gremlin"], environment=environment, sleep=waited.append) == 2
    return waited


def test_mistake_on_another_rank(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints nothing and waits, because torchrun ends rank 0 as soon as another rank exits."""
    (waited,) = mistaken(1)
    assert waited > 0
    assert capsys.readouterr().err == ""


def test_mistake_on_rank_0(capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 0 prints the error and exits without waiting."""
    assert mistaken(0) == []
    assert "no fault is called 'gremlin'" in capsys.readouterr().err


def test_checkpoint_directory(tmp_path: Path) -> None:
    """It is created with its parents. An existing directory is used."""
    config = TrainerConfig(checkpoint_dir=tmp_path / "runs" / "checkpoints")
    require_writable_outputs(config)
    require_writable_outputs(config)
    assert (tmp_path / "runs" / "checkpoints").is_dir()


def test_writable_history(tmp_path: Path) -> None:
    """The check neither creates the file nor changes an earlier one."""
    (tmp_path / "old").write_text("earlier")
    for name in ("old", "new"):
        require_writable_outputs(TrainerConfig(history=tmp_path / name))
    assert (tmp_path / "old").read_text() == "earlier"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "cause"), [("missing/history", "No such file or directory"), (".", "Is a directory")]
)
def test_unwritable_history(tmp_path: Path, name: str, cause: str) -> None:
    """The error is raised before the run, not at its end."""
    with pytest.raises(UsageError, match=f"could not write history .*: {cause}"):
        require_writable_outputs(TrainerConfig(history=tmp_path / name))


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
    assert start() == 2
    assert os.environ["TORCH_CPP_LOG_LEVEL"] == kept
