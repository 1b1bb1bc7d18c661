"""What ranks tell of a mistake, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_trainer.cli import main, require_writable_outputs
from rankwatch_trainer.config import TrainerConfig
from rankwatch_trainer.errors import UsageError

RANK_1 = {"RANK": "1", "WORLD_SIZE": "2"}


def test_other_ranks_leave_it_to_rank_0_to_tell_a_mistake_and_give_it_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """torchrun would end rank 0 as soon as another rank has exited."""
    waited: list[float] = []
    assert main(["--fault", "gremlin"], environment=RANK_1, sleep=waited.append) == 2
    assert len(waited) == 1 and waited[0] > 0
    assert capsys.readouterr().err == ""


def test_rank_0_tells_a_mistake_without_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    """Its sentence is all that is printed."""
    waited: list[float] = []
    assert main(["--fault", "gremlin"], environment={**RANK_1, "RANK": "0"}, sleep=waited.append) == 2
    assert waited == []
    assert "no fault is called 'gremlin'" in capsys.readouterr().err


def test_the_directory_of_the_checkpoints_is_created(tmp_path: Path) -> None:
    """With its parents; one that exists is taken as it is."""
    config = TrainerConfig(checkpoint_dir=tmp_path / "runs" / "checkpoints")
    require_writable_outputs(config)
    require_writable_outputs(config)
    assert (tmp_path / "runs" / "checkpoints").is_dir()


def test_a_file_in_place_of_the_directory_is_told(tmp_path: Path) -> None:
    """By its path."""
    (tmp_path / "checkpoints").touch()
    with pytest.raises(UsageError, match=r"could not create checkpoint_dir .*/checkpoints: File exists"):
        require_writable_outputs(TrainerConfig(checkpoint_dir=tmp_path / "checkpoints"))


def test_a_history_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    """Absent, or with what an earlier run wrote."""
    (tmp_path / "old").write_text("earlier")
    for name in ("old", "new"):
        require_writable_outputs(TrainerConfig(history=tmp_path / name))
    assert (tmp_path / "old").read_text() == "earlier"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "cause"), [("missing/history", "No such file or directory"), (".", "Is a directory")]
)
def test_a_history_that_cannot_be_written_is_told(tmp_path: Path, name: str, cause: str) -> None:
    """Before the run, not at its end."""
    with pytest.raises(UsageError, match=f"could not write history .*: {cause}"):
        require_writable_outputs(TrainerConfig(history=tmp_path / name))
