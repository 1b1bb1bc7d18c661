"""The jobs as in production, how a verdict on them is judged, and what other rules say of them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.detection.curves import SIZES, attempt, by_chips
from bench.detection.judging import Innocent, Judged, acceptable, judge, judge_job, named_by_rules
from bench.detection.production import CHIP_SIGMAS, CYCLE, LINK, NONE, RANK, production_job
from bench.detection.report import one_line, production_result
from bench.result import as_markdown
from bench.simulation.job import Job, Level, at_level, simulate
from bench.simulation.program import JobShape
from bench.simulation.workload import Fault
from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.straggler.verdict import Verdict

ROOT = Path(__file__).parents[3]
JOB = at_level(
    Job(
        shape=JobShape(data_parallel=4, pipeline_parallel=4, microbatches=8),
        fault=Fault(cause=Cause.SLOW_RANK, ranks=(6,), factor=1.5),
        steps=8,
    ),
    Level.REAL,
)


def test_jobs() -> None:
    """A cycle holds every class; all jobs can be, and faults strike ranks that are recorded."""
    jobs = [production_job(number, 1) for number in range(2 * len(CYCLE))]
    for each in jobs:
        struck = [rank for fault in each.job.faults for rank in fault.ranks]
        assert each.job.recorder.recorded(each.job.shape, struck) == tuple(sorted(struck))
        assert bool(each.job.faults) == (each.label != NONE)
        assert each.label != LINK or each.job.shape.tensor_parallel == 1
    assert {each.label for each in jobs} == set(CYCLE)
    assert production_job(17, 1) == production_job(17, 1)
    assert production_job(17, 1).job.seed != production_job(17, 2).job.seed


def test_small_and_large_faults() -> None:
    """Slow ranks range from far below the least fault that can be found to far above it."""
    numbers = [number for number in range(300) if CYCLE[number % len(CYCLE)] == RANK]
    factors = [production_job(number, 1).job.fault.factor for number in numbers]
    assert min(factors) < 1.01
    assert max(factors) > 1.7
    assert 0.1 < np.mean(np.array(factors) < 1.025) < 0.5


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ({"cause": Cause.SLOW_RANK, "phase": SlowPhase.COMPUTE, "ranks": (6,)}, True),
        ({"cause": Cause.SLOW_RANK, "phase": SlowPhase.COMPUTE, "ranks": (6, 7)}, False),
        ({"cause": Cause.SLOW_RANK, "phase": SlowPhase.COMPUTE, "ranks": (7,)}, False),
        ({"cause": Cause.SLOW_RANK, "phase": SlowPhase.OTHER, "ranks": (6,)}, False),
        ({"cause": Cause.SLOW_STAGE, "stages": (1,)}, False),
        ({"cause": Cause.NONE}, False),
        ({"cause": Cause.INCONCLUSIVE}, False),
    ],
)
def test_acceptable(said: dict[str, Any], right: bool) -> None:
    """The right cause with nobody else in it."""
    assert acceptable(JOB, simulate(JOB).truth, Verdict(**said)) is right


def test_acceptable_silence() -> None:
    """A fault as small as what healthy chips differ by may be passed over."""
    small = replace(JOB, fault=replace(JOB.fault, factor=1.02))
    assert acceptable(small, simulate(small).truth, Verdict(cause=Cause.NONE))
    healthy = replace(JOB, fault=Fault())
    assert acceptable(healthy, simulate(healthy).truth, Verdict(cause=Cause.NONE))
    named = Verdict(cause=Cause.SLOW_RANK, phase=SlowPhase.COMPUTE, ranks=(3,))
    assert not acceptable(healthy, simulate(healthy).truth, named)


def test_acceptable_without_what_would_decide() -> None:
    """Of a table without receives a verdict may be inconclusive, but not that nothing is wrong."""
    part = replace(JOB, recorder=replace(JOB.recorder, receives=False))
    truth = simulate(part).truth
    assert acceptable(part, truth, Verdict(cause=Cause.INCONCLUSIVE))
    assert not acceptable(part, truth, Verdict(cause=Cause.NONE))


def test_judged_job() -> None:
    """A rank at two thirds of its speed is found, at its cost."""
    found = judge_job(JOB, 0, RANK)
    assert (found.acceptable, found.innocents) == (True, ())
    assert (found.faulty_ranks, found.faulty_ranks_found) == (1, 1)
    assert found.cost_error is not None
    assert found.cost_error < 0.2
    assert one_line(found).startswith("   0 slow rank, 4 replicas, chips 1.0%: slow_rank (compute) 6 1.")


def test_report() -> None:
    """A wrong cause, a named innocent and a missed rank show in the table."""
    right = judge(0, 1)
    wrong = replace(
        right,
        label=RANK,
        acceptable=False,
        innocents=(Innocent("rank 3", 1.04),),
        faulty_ranks=1,
        cost_error=0.5,
    )
    table = as_markdown(production_result([right, wrong], 1))
    rows = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ")}
    assert "50.0%" in rows["acceptable cause"]
    assert "MISSED" in rows["innocents named"]
    assert "0 of 1" in rows["faulty ranks that cost 1 %, in causes"]
    assert "MISSED" in rows["cost error, 95 % of jobs"]
    assert "1 innocents" in rows["class: slow rank"]
    assert "rule of others: slowest step" in rows


def test_rules_of_others() -> None:
    """Three of them find a rank at half its speed, and two always name somebody."""
    fault = Fault(cause=Cause.SLOW_RANK, ranks=(3,), factor=2.0)
    sick = named_by_rules(simulate(Job(shape=JobShape(), fault=fault, steps=5)).table)
    assert {name for name, ranks in sick.items() if ranks == (3,)} >= {*sick} - {"slowest step"}
    well = named_by_rules(simulate(Job(shape=JobShape(), steps=20)).table)
    assert well["ratio to the fastest below 0.75"] == ()
    assert len(well["slowest step"]) == len(well["shortest wait of the job"]) == 1


def test_curves() -> None:
    """Jobs of one number have the same shape and rank at fault, whatever chips and size of the fault are."""
    large, small = attempt(0.004, 0.4, 0, 1), attempt(0.03, 0.02, 0, 1)
    for what in ("ranks", "replicas"):
        assert getattr(large.judged, what) == getattr(small.judged, what)
    assert large.judged.truth["ranks"] == small.judged.truth["ranks"]
    assert large.judged.truth["slowdown"] > small.judged.truth["slowdown"]
    assert large.judged.all_found
    missed = large._replace(judged=replace(large.judged, all_found=False))
    grid = [
        (large if size >= 0.05 else missed)._replace(chip_sigma=sigma, size=size)
        for sigma in CHIP_SIGMAS
        for size in SIZES
    ]
    assert by_chips(grid)[0.01] == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.process
def test_command(tmp_path: Path) -> None:
    """One job alone is judged and written, so that anybody can look at it."""
    written = tmp_path / "job.csv"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.bench.detection", "--only", "1", "--list"),
            *("--write", str(written), "--processes", "1", "--output", str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "acceptable cause" in done.stdout
    assert written.read_text().startswith("step,rank,operation,kind")
    judged = json.loads((tmp_path / "detection.json").read_text())["samples"]["jobs"]
    assert [each["number"] for each in judged] == [1]
    assert set(judged[0]) == set(Judged.__dataclass_fields__)
