"""The trainer's command line: errors on several ranks, and checks of its output files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_trainer.cli import main, require_writable_outputs
from rankwatch_trainer.config import TrainerConfig
from rankwatch_trainer.errors import UsageError

RANK_1 = {"RANK": "1", "WORLD_SIZE": "2"}


def test_mistake_on_another_rank(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It prints nothing and waits, because torchrun ends rank 0 as soon as another rank exits."""
    waited: list[float] = []
    assert main(["--fault", "gremlin"], environment=RANK_1, sleep=waited.append) == 2
    assert len(waited) == 1 and waited[0] > 0
    assert capsys.readouterr().err == ""


def test_mistake_on_rank_0(capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 0 prints the error and exits without waiting."""
    waited: list[float] = []
    assert main(["--fault", "gremlin"], environment={**RANK_1, "RANK": "0"}, sleep=waited.append) == 2
    assert waited == []
    assert "no fault is called 'gremlin'" in capsys.readouterr().err


def test_checkpoint_directory(tmp_path: Path) -> None:
    """It is created with its parents. An existing directory is used."""
    config = TrainerConfig(checkpoint_dir=tmp_path / "runs" / "checkpoints")
    require_writable_outputs(config)
    require_writable_outputs(config)
    assert (tmp_path / "runs" / "checkpoints").is_dir()


def test_file_as_checkpoint_directory(tmp_path: Path) -> None:
    """The error names the path."""
    (tmp_path / "checkpoints").touch()
    with pytest.raises(UsageError, match=r"could not create checkpoint_dir .*/checkpoints: File exists"):
        require_writable_outputs(TrainerConfig(checkpoint_dir=tmp_path / "checkpoints"))


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
