"""`rankwatch blackbox`: the final state of a rank, wherever its box is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.commands.blackbox import main
from support.training.ranks import rank


def test_a_live_rank_is_told_with_its_open_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who, where, since when, and the newest records."""
    with rank(
        tmp_path, "steps(3)\nrun.begin_step()\nrun.begin_phase('backward')\nready()", world=4, number=2
    ):
        assert main([str(tmp_path / "job" / "2.blackbox"), "--records", "5"]) == 0
    said = capsys.readouterr().out
    assert "run job, rank 2 of 4, running" in said
    assert "open phase backward since" in said
    assert "3 steps completed, last number 3, one open since" in said
    assert "loss 2\n" in said
    assert said.count("\n  ") == 5


def test_a_copy_kept_as_evidence_is_read_and_tells_how_the_rank_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under any name; with the type of the exception, and the step that it ended."""
    with rank(tmp_path, "ready()\nwith run, run.step(): raise ValueError") as process:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait()
    shutil.copy(tmp_path / "job" / "0.blackbox", tmp_path / "evidence")
    assert main([str(tmp_path / "evidence")]) == 0
    said = capsys.readouterr().out
    assert "rank 0 of 1, failed" in said
    assert "lifecycle failed ValueError" in said
    assert "number 0, ended by an exception" in said
    assert "loss not reported" in said


def test_what_is_no_box_is_one_sentence(tmp_path: Path) -> None:
    """The path is in it."""
    (tmp_path / "x").write_text("no box")
    with pytest.raises(UserError, match="x is not a usable black box"):
        main([str(tmp_path / "x")])
    with pytest.raises(UserError, match="records is -1"):
        main([str(tmp_path / "x"), "--records", "-1"])
