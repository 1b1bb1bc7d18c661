"""`rankwatch ls`, and how commands find the run that a user means."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rankwatch
from rankwatch.conventions.states import RankState
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.main import main
from rankwatch_cli.runs import find_runs, named_run
from support.training.ranks import rank


def record(directory: Path, name: str, *, steps: int = 3, end: str = "finish", **more: int) -> None:
    """A run of this process that has ended."""
    options = {"flight_recorder": False, "collectives": False}
    run = rankwatch.start(run=name, directory=directory, target_steps=10, **options, **more)
    for number in range(steps):
        with run.step():
            run.scalar("loss", 2.0 - 0.01 * number)
    run.fail(ValueError) if end == "fail" else getattr(run, end)()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with three runs: one finished, one failed on one of two ranks, and the newest, which lives."""
    monkeypatch.setenv("RANKWATCH_DIR", str(tmp_path))
    record(tmp_path, "first")
    record(tmp_path, "second", rank=0, world_size=4)
    record(tmp_path, "second", rank=1, world_size=4, end="fail", steps=5)
    (tmp_path / "no run").mkdir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "0.blackbox").write_text("no box")
    return tmp_path


@pytest.mark.process
def test_listing(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs stand newest first, with state, step, age, ranks and verdict. What is no run is left out."""
    with rank(node, "steps(2)\nready()", run="living"):
        assert main(["ls"]) == 0
        head, *rows = capsys.readouterr().out.splitlines()
        assert main(["ls", "--json"]) == 0
    assert head.split() == ["RUN", "NAME", "STATE", "STEP", "LEFT", "AGE", "RANKS", "VERDICT"]
    assert [[row.split()[0], *row.split()[2:4]] for row in rows] == [
        ["living", "running", "1/100"],
        ["second", "failed", "4/10"],
        ["first", "finished", "2/10"],
    ]
    assert [row.split()[-2] for row in rows] == ["1/1/1", "0/2/4", "0/1/1"]
    living, second, _ = json.loads(capsys.readouterr().out)
    assert (living["state"], living["living"], "ended" in living) == ("running", 1, False)
    assert living["seconds_left"] > 0.0
    assert (second["ranks"], second["world_size"], second["step"]) == (2, 4, 4)
    assert second["verdict"] == "inconclusive"


@pytest.mark.parametrize(
    ("end", "state"), [("finish", "finished"), ("preempted", "preempted"), ("fail", "failed")]
)
def test_state_without_records(tmp_path: Path, end: str, state: str) -> None:
    """The end of a run is read from the now block, however many records the ring holds."""
    record(tmp_path, "job", end=end)
    (seen,) = find_runs(tmp_path)
    assert seen.state is RankState(state)
    assert seen.ended is not None


def test_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence says so. It is no error."""
    monkeypatch.setenv("RANKWATCH_DIR", str(tmp_path / "none"))
    assert main(["ls"]) == 0
    assert "no run is recorded in" in capsys.readouterr().out
    assert main(["ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["diagnose", "run"]) == 2
    assert "no run is recorded in" in capsys.readouterr().err


def test_named_run(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name, its beginning, a path or nothing finds the run. A folder of the same name here does not."""
    (node / "elsewhere" / "first").mkdir(parents=True)
    monkeypatch.chdir(node / "elsewhere")
    assert named_run(None, node) == node / "second"
    assert named_run("first", node) == node / "first"
    assert named_run("sec", node) == node / "second"
    assert named_run("./first", node) == Path("first")
    assert named_run(".", node) == Path()
    record(node, "fine")
    with pytest.raises(UserError, match=r"beginning of 2 runs \(fine, first\)"):
        named_run("fi", node)
    with pytest.raises(UserError, match=r"'third' is no run in .* and no path; `rankwatch ls`"):
        named_run("third", node)


def test_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the script or the job finds its newest run, for runs whose ids nobody can remember."""
    monkeypatch.setenv("SLURM_JOB_NAME", "pretrain")
    record(tmp_path, "slurm-11")
    record(tmp_path, "slurm-7")
    monkeypatch.setenv("SLURM_JOB_NAME", "other")
    record(tmp_path, "slurm-15")
    assert named_run("pretrain", tmp_path) == tmp_path / "slurm-7"


def test_short_name_begins_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids made from the script all begin with its name, which still means the newest of them."""
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    record(tmp_path, "train-vm-2")
    record(tmp_path, "train-vm-1")
    assert named_run("train", tmp_path) == tmp_path / "train-vm-1"


@pytest.mark.parametrize("subject", ["hang", "loss", "straggler"])
def test_name_of_newest_run(node: Path, capsys: pytest.CaptureFixture[str], subject: str) -> None:
    """Verdicts that do not name the run say which one they took. Standard output stays as it was."""
    assert main(["diagnose", subject, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "newest run: second\n"
    assert isinstance(json.loads(printed.out), dict)


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["diagnose", "run"], "FAILED"),
        (["diagnose", "run", "first"], "FINISHED"),
        (["diagnose", "hang", "first"], "OK: nothing hangs"),
        (["diagnose", "loss", "first"], "no anomaly in 3 steps"),
        (["diagnose", "straggler", "first"], "inconclusive"),
        (["blackbox"], "run second, rank 0 of 4, finished"),
        (["blackbox", "second", "--rank", "1"], "run second, rank 1 of 4, failed"),
    ],
)
def test_commands(node: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], printed: str) -> None:
    """Each command that reads a run takes its name, and the newest run by default."""
    assert main(arguments) == 0
    assert printed in capsys.readouterr().out


def test_missing_rank(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error lists the ranks that have a box."""
    assert main(["blackbox", "second", "--rank", "3"]) == 2
    assert "holds no black box of rank 3, but of 0-1" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["ls"], ["blackbox"]])
def test_without_extras(node: Path, arguments: list[str]) -> None:
    """What needs no extra works where none is installed, as in a training image."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('msgspec', 'numpy', 'prometheus_client', 'torch')))\n"
        f"from rankwatch_cli.main import main; sys.exit(main({arguments!r}))"
    )
    env = {**os.environ, "RANKWATCH_DIR": str(node)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "second" in done.stdout
