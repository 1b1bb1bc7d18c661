"""What ranks tell of a mistake, and when."""

from __future__ import annotations

import pytest

from rankwatch_trainer.cli import main

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
