"""The jobs of the detection bench, and the rules that it compares with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.detection.mixture import CYCLE, HOST_WORK, LEAST_COST, labelled, run
from bench.detection.trial import baseline_names, prefix
from bench.simulation.job import Job, simulate
from bench.simulation.program import JobShape
from bench.simulation.workload import Fault
from rankwatch.conventions.states import Cause

ROOT = Path(__file__).parents[3]


def test_mixture() -> None:
    """Two whole cycles hold every class, with 8 to 1,024 ranks and noise of 2 to 5 %."""
    jobs = [labelled(number, 1) for number in range(2 * len(CYCLE))]
    assert len(CYCLE) == 50
    for each in jobs:
        assert 8 <= each.job.shape.ranks <= 1024
        assert 0.02 <= each.job.noise.sigma <= 0.05
        assert each.label.startswith(str(each.job.fault.cause))
    assert {each.job.fault.cause for each in jobs} == set(Cause) - {Cause.DATA_LOADING, Cause.INCONCLUSIVE}
    assert any(each.job.shape.ranks == 1024 for each in jobs)


def test_job_is_reproducible() -> None:
    """A job depends on its number and the seed base alone, so any part of a bench can be repeated."""
    assert labelled(17, 1) == labelled(17, 1)
    assert labelled(17, 1).job.seed != labelled(17, 2).job.seed


@pytest.mark.parametrize("label", ["network", HOST_WORK, "unequal_batches", "jitter", "slow_stage"])
def test_other_causes_cost_something(label: str) -> None:
    """A fault that costs nothing could not be found, so it is made stronger."""
    numbers = [number for number in range(100) if CYCLE[number % 50] == label]
    small = next(each for number in numbers if (each := labelled(number, 1)).job.shape.ranks <= 64)
    job, done = run(small.job)
    assert done.truth.active_slowdown >= LEAST_COST
    assert job.fault.factor >= small.job.fault.factor


def test_baselines() -> None:
    """All find a rank at half its speed, and two of them always name somebody."""
    fault = Fault(cause=Cause.SLOW_RANK, ranks=(3,), factor=2.0)
    sick = baseline_names(simulate(Job(shape=JobShape(), fault=fault, steps=5)).table)
    assert sick["ratio to the fastest below 0.75"] == sick["median + 3 MAD"] == (3,)
    assert sick["shortest wait of the job"] == (3,)
    well = baseline_names(simulate(Job(shape=JobShape(), steps=20)).table)
    assert well["ratio to the fastest below 0.75"] == ()
    assert len(well["slowest step"]) == len(well["shortest wait of the job"]) == 1


def test_prefix() -> None:
    """It holds the first steps in every column."""
    table = simulate(Job(steps=6)).table
    first = prefix(table, 2)
    assert np.unique(first.step).tolist() == [0, 1]
    assert len(first.work) == len(first.rank) == len(table) // 3
    assert first.operations == table.operations


@pytest.mark.process
def test_command(tmp_path: Path) -> None:
    """It prints its table and writes every trial, as `make bench-detection` runs it."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.bench.detection"),
            *("--jobs", "3", "--processes", "1", "--output", str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "| baseline, slow rank >= 5 %: slowest step" in done.stdout
    written = json.loads((tmp_path / "detection.json").read_text())
    assert [each["number"] for each in written["samples"]["trials"]] == [0, 1, 2]
    assert written["seed_base"] == 1
