"""`rankwatch blackbox` prints the final state of a rank from its black box."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import rankwatch
from rankwatch.conventions.vocabulary import Unseen
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.commands.blackbox import main
from support.training.ranks import go_on, rank


def shown(capsys: pytest.CaptureFixture[str], path: Path, *flags: str) -> str:
    """What the command prints."""
    assert main([str(path), *flags]) == 0
    return capsys.readouterr().out


@pytest.mark.process
def test_living_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output names the rank and its open phase, and lists the newest records."""
    code = "steps(3)\nrun.begin_step()\nrun.begin_phase('backward')\nready()"
    with rank(tmp_path, code, world=4, number=2):
        printed = shown(capsys, tmp_path / "job" / "2.blackbox", "--records", "5")
    assert "run job, rank 2 of 4, running" in printed
    assert "open phase backward since" in printed
    assert "3 steps completed, last number 3, one open since" in printed
    assert "loss 2\n" in printed
    assert printed.count("\n  ") == 5


@pytest.mark.process
def test_copy_of_a_failed_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy with any file name is read. It shows the type of the exception and the step that failed."""
    with rank(tmp_path, "ready()\nwith run, run.step(): raise ValueError('bad batch')") as process:
        go_on(process)
        process.wait()
    shutil.copy(tmp_path / "job" / "0.blackbox", tmp_path / "evidence")
    printed = shown(capsys, tmp_path / "evidence")
    assert "rank 0 of 1, failed" in printed
    assert "lifecycle failed ValueError: bad batch" in printed
    assert "number 0, ended by an exception" in printed
    assert "loss not reported" in printed


@pytest.mark.process
def test_crashed_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is visible of its loop, and the signal that ended it."""
    said = "from rankwatch.conventions.vocabulary import Capability, Unseen\nrun.sees(Capability.STEPS)\n"
    said += "run.cannot_see(Capability.LOSS, Unseen.DEVICE)\nready()\nos.abort()"
    with rank(tmp_path, said) as process:
        go_on(process)
        process.wait()
    printed = shown(capsys, tmp_path / "job")  # the only box of the run
    assert "ended by SIGABRT: Aborted (crash)\n" in printed
    assert f"visible:     steps\nnot visible: loss, because {Unseen.DEVICE.sentence}\n" in printed


def test_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Operations and their stages are printed with name, step, bytes and outcome."""
    run = rankwatch.start(run="job", directory=tmp_path)
    with pytest.raises(OSError, match="disk"), run.checkpoint("save", step=7) as operation:
        operation.bytes = 1000
        with operation.stage("write"):
            raise OSError("disk full")
    run.finish()
    printed = shown(capsys, tmp_path / "job" / "0.blackbox")
    assert re.search(r"checkpoint save [0-9.]+ ms stage write of step 7, 1000 bytes, failed\n", printed)
    assert re.search(r"checkpoint save [0-9.]+ ms of step 7, 1000 bytes, failed\n", printed)


def test_full_table_of_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says how often a name had no place."""
    run = rankwatch.start(run="job", directory=tmp_path)
    for number in range(600):
        run.scalar(f"norm/{number}", 1.0)
    run.finish()
    printed = shown(capsys, tmp_path / "job" / "0.blackbox")
    assert re.search(r"\n\d+ uses of names for which the table of 511 has no place\n", printed)


def test_mistakes(tmp_path: Path) -> None:
    """The error names the file that is no black box, or the invalid option."""
    (tmp_path / "x").write_text("no box")
    with pytest.raises(UserError, match="x is not a usable black box"):
        main([str(tmp_path / "x")])
    with pytest.raises(UserError, match="records is -1"):
        main([str(tmp_path / "x"), "--records", "-1"])
