"""`rankwatch compare`, on simulated runs and on real ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.simulation.black_boxes import write_job_boxes
from bench.simulation.job import Job, simulate
from bench.simulation.program import JobShape
from bench.simulation.workload import Fault
from rankwatch.conventions.states import Cause
from rankwatch_cli.main import main
from rankwatch_diagnosis.comparison import compare, read_figures


def simulated(directory: Path, name: str, job: Job) -> str:
    """The folder of a simulated run."""
    write_job_boxes(simulate(job).table, job.shape, directory / name, run="simulated", seed=job.seed)
    return str(directory / name)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Runs without a fault, and one with a slow rank."""
    directory = tmp_path_factory.mktemp("runs")
    job = Job(shape=JobShape(data_parallel=4), steps=120, with_work=True)
    slow = Fault(cause=Cause.SLOW_RANK, ranks=(2,), factor=1.3)
    jobs = {
        "one": replace(job, seed=1),
        "other": replace(job, seed=2),
        "slow": replace(job, seed=3, fault=slow),
        "short": replace(job, seed=4, steps=13),
        "larger": replace(job, seed=5, shape=JobShape(data_parallel=8)),
    }
    return {name: simulated(directory, name, each) for name, each in jobs.items()}


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit status and output."""
    capsys.readouterr()
    status = main(["compare", *arguments])
    return status, capsys.readouterr().out


def test_same(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs of one job pass a narrow limit."""
    status, output = compared(capsys, runs["one"], runs["other"], "--max-step-time-regression=1%")
    assert status == 0
    assert "step time" in output
    assert "REGRESSION" not in output


def test_regression(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A slow rank lengthens the step beyond the limit, and is named."""
    status, output = compared(capsys, runs["one"], runs["slow"], "--max-step-time-regression=5%")
    assert status == 1
    assert "REGRESSION" in output
    assert "slow_rank (compute) rank 2" in output
    status, output = compared(capsys, runs["slow"], runs["one"], "--max-step-time-regression=5%")
    assert status == 0
    assert "better" in output


def test_json(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each change with its interval, its limit and its outcome."""
    limits = ("--max-throughput-regression=10", "--max-loss-regression=50%")
    status, output = compared(capsys, runs["one"], runs["slow"], *limits, "--json")
    found = json.loads(output)
    assert status == 1
    changes = {each["figure"]: each for each in found["changes"]}
    assert found["regressions"] == ["tokens per second"]
    assert 0.1 < changes["tokens per second"]["worsening"] < 0.35
    low, high = changes["step time"]["interval"]
    assert low < changes["step time"]["worsening"] < high
    assert found["after"]["steps"] == 110


def test_too_few_steps(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Three steps say nothing for certain; --strict takes that for a failure."""
    arguments = (runs["short"], runs["slow"], "--max-step-time-regression=5%")
    status, output = compared(capsys, *arguments)
    assert (status, "uncertain" in output) == (0, True)
    assert compared(capsys, *arguments, "--strict")[0] == 1


def test_missing_figure(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A limit for what a run does not show is said to be void."""
    arguments = (runs["one"], runs["other"], "--max-gpu-memory-regression=5%")
    status, output = compared(capsys, *arguments)
    assert (status, "gpu memory has a limit" in output) == (0, True)
    assert compared(capsys, *arguments, "--strict")[0] == 1


def test_other_world_size(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A run of another size is compared, and that is said."""
    _, output = compared(capsys, runs["one"], runs["larger"])
    assert "unlike  4 and 8 ranks" in output


def test_no_work(runs: dict[str, str]) -> None:
    """A run that counted no tokens is unlike one that did, and like another without."""
    one = read_figures(Path(runs["one"]))
    none = replace(one, work_per_step={"tokens": 0.0}, work_per_second={"tokens": 0.0})
    for first, second in ((none, one), (one, none)):
        (said,) = compare(first, second, {}).unlike
        assert "tokens a step: compare the rate" in said
    assert not compare(none, none, {}).unlike


@pytest.mark.parametrize("limit", ["", "five", "-1%", "5%%", "1e3"])
def test_bad_limit(runs: dict[str, str], capsys: pytest.CaptureFixture[str], limit: str) -> None:
    """One sentence, status 2."""
    with pytest.raises(SystemExit) as stopped:
        main(["compare", runs["one"], runs["other"], f"--max-step-time-regression={limit}"])
    assert stopped.value.code == 2
    assert "expected one such as 5%" in capsys.readouterr().err


def test_no_run(runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without black boxes is named."""
    assert main(["compare", runs["one"], str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
