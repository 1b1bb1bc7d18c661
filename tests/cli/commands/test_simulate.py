"""`rankwatch simulate` writes the files of a faulty job and its true root cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankwatch_cli.main import main
from support.agent.process import rankwatch


def test_slowdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One table is written for each format. The printed truth is the same as the written one."""
    output = tmp_path / "job"
    flags = ["--fault", "slow_rank", "--ranks", "1,3", "--factor", "1.5", "--first-step", "2", "--steps", "5"]
    assert main(["simulate", str(output), *flags, "--format", "csv", "--format", "parquet"]) == 0
    truth = json.loads(capsys.readouterr().out)
    assert truth == json.loads((output / "truth.json").read_text())
    assert (truth["cause"], truth["ranks"], truth["first_step"]) == ("slow_rank", [1, 3], 2)
    assert truth["slowdown"] > 1.1
    assert {path.name for path in output.iterdir()} == {
        "operations.csv",
        "operations.parquet",
        "truth.json",
    }


def test_hang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every rank writes a dump, except the killed one."""
    output = tmp_path / "job"
    assert main(["simulate", str(output), "--fault", "killed", "--ranks", "6"]) == 0
    truth = json.loads(capsys.readouterr().out)
    assert (truth["state"], truth["ranks"], truth["missing_ranks"]) == ("hang", [6], [6])
    dumps = {path.name for path in (output / "flight_recorder").iterdir()}
    assert dumps == {f"_dump_{rank}" for rank in range(8) if rank != 6}


def test_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same seed chooses the same faulty ranks."""
    chosen = []
    for number, seed in enumerate(("3", "3", "4", "5", "6")):
        output = str(tmp_path / str(number))
        flags = ["--fault", "slow_rank", "--rank-count", "2", "--seed", seed, "--steps", "2"]
        assert main(["simulate", output, *flags]) == 0
        chosen.append(tuple(json.loads(capsys.readouterr().out)["ranks"]))
    assert all(len(each) == 2 for each in chosen)
    assert chosen[0] == chosen[1]
    assert len(set(chosen)) > 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--fault", "slow_rank", "--ranks", "8"], "rank is 8, expected 0 to 7"),
        (["--fault", "slow_rank", "--rank-count", "9"], "--rank-count is 9, expected 1 to 8"),
        (["--fault", "slow_rank", "--ranks", "x"], "'x' is no list of ranks such as 3,5"),
        (["--fault", "skip", "--format", "csv"], "--format is 'csv', expected pickle or json for fault skip"),
        (
            ["--format", "pickle"],
            "--format is 'pickle', expected csv or csv.gz or jsonl or parquet for fault",
        ),
        (["--sigma", "2"], "sigma is 2.0, expected 0 to 1"),
        (["--data-parallel", "0"], "data_parallel is 0, expected at least 1"),
        (["--fault", "bad"], "invalid choice: 'bad'"),
        (["--also", "slow_stage,stage=x"], "--also is 'slow_stage,stage=x', expected a fault such as"),
        (["--also", "slow_stage,who=3"], "fields are ranks, phase, stage, factor"),
        (["--also", "slow_stage"], "fault slow_stage needs a stage"),
        (["--as", "real", "--fault", "skip"], "--as real writes tables of operations only, of slowdowns"),
        (["--as", "real", "--black-boxes", "x"], "--as real writes tables of operations only, of slowdowns"),
        (["--as", "real", "--chip-spread", "2"], "rank_sigma is 2.0, expected 0 to 1"),
        (
            ["--as", "real", "--barriers", "all"],
            "'all' is no list of last_stage, first_replica, replica, job",
        ),
        (["--barriers", "job"], "--barriers needs --as real"),
        (["--unrecorded"], "an unrecorded fault is a slow_rank of phase other"),
    ],
)
def test_invalid_options(
    flags: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are refused with one sentence and status 2, and no directory is created."""
    output = tmp_path / "job"
    try:
        status: object = main(["simulate", str(output), *flags])
    except SystemExit as stopped:
        status = stopped.code
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert not output.exists()


@pytest.mark.process
def test_directory_in_use(tmp_path: Path) -> None:
    """It is refused and left unchanged. Files of two jobs would be diagnosed as one."""
    (tmp_path / "mine").write_text("kept")
    done = rankwatch("simulate", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"rankwatch simulate: could not write to {tmp_path}: it is not empty\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.process
def test_slow_stage(tmp_path: Path) -> None:
    """A missing stage is an error. For a stage that the job lacks, the error names the valid range."""
    job = (str(tmp_path / "job"), "--pipeline-parallel", "2", "--fault", "slow_stage")
    assert rankwatch("simulate", *job).stderr == "rankwatch simulate: fault slow_stage needs a stage\n"
    assert "stage is 2, expected 0 to 1" in rankwatch("simulate", *job, "--stage", "2").stderr


def test_real_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two faults at once, in a table as a real job records it, of which a part is left out."""
    output = tmp_path / "job"
    shape = ["--data-parallel", "2", "--pipeline-parallel", "2", "--tensor-parallel", "2", "--steps", "6"]
    faults = [
        "--fault",
        "slow_rank",
        "--ranks",
        "3",
        "--factor",
        "1.5",
        "--also",
        "slow_stage,stage=1,factor=1.3",
    ]
    flags = ["--as", "real", "--chip-spread", "0.02", "--delayed", "0.02", "--without", "sends"]
    flags += ["--drift", "0.002", "--barriers", "none"]
    assert main(["simulate", str(output), *shape, *faults, *flags]) == 0
    truth = json.loads(capsys.readouterr().out)
    assert {each["cause"]: (each["ranks"], each["stages"]) for each in truth["causes"]} == {
        "slow_rank": ([2], []),
        "slow_stage": ([], [1]),
    }
    assert truth["slowdown"] == max(each["slowdown"] for each in truth["causes"])
    assert truth["slowdown_if_all_fixed"] > truth["slowdown"]
    table = (output / "operations.csv").read_text()
    assert "params-all-gather" in table
    assert "forward-recv" in table
    assert "forward-send" not in table


def test_unrecorded_stall(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a slow rank whose other work grew, here in a part of the steps."""
    fault = ["--fault", "slow_rank", "--ranks", "1", "--phase", "other", "--factor", "1.5", "--unrecorded"]
    assert main(["simulate", str(tmp_path / "job"), *fault, "--as", "real", "--share-of-steps", "0.3"]) == 0
    truth = json.loads(capsys.readouterr().out)
    assert (truth["cause"], truth["phase"], truth["ranks"]) == ("slow_rank", "other", [1])
    assert 0.2 < truth["causes"][0]["share_of_steps"] < 0.4
    assert truth["slowdown"] > 1.05
