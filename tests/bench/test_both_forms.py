"""The comparison of rules and engine: its jobs and its scores."""

from __future__ import annotations

import pytest

from bench.both_forms import ENGINE, RULES, STEPS, Compared, Culprit, Score, compared_job, result
from bench.detection.production import PART, production_job
from bench.result import as_markdown
from bench.simulation.job import Level

RANK, OTHER = Culprit("rank", 3), Culprit("rank", 4)


def _compared(truth: dict[Culprit, float], found: dict[Culprit, float]) -> Compared:
    return Compared("real", 0, "slow rank", 0.01, truth, {RULES: found, ENGINE: {}})


def test_score() -> None:
    """One of two is found, at 0.12 for 0.10, beside a rank without a fault; a cheap fault does not count."""
    jobs = (
        _compared({RANK: 0.10}, {RANK: 0.12, OTHER: 0.05}),
        _compared({RANK: 0.30}, {}),
        _compared({RANK: 0.001}, {RANK: 0.01}),
    )
    score = Score.of(RULES, jobs, "rank")
    assert (score.costly, score.costly_found, score.named, score.innocents) == (2, 1, 3, 1)
    assert score.error / score.true_excess == pytest.approx(0.2)
    row = score.row("rules")
    assert row[:3] == ("rules", "1 of 2 found", "1 of 3 named are innocent; cost error 20%")
    assert row.spread in as_markdown(result(jobs))


def test_jobs_keep_their_faults() -> None:
    """A fault in part of the steps stays in as large a part of the longer run; the clean level has no chips
    that differ by percents."""
    number = next(each for each in range(400) if _is_part_of_a_run(each))
    real, clean = (compared_job(level, number, 1) for level in (Level.REAL, Level.CLEAN))
    assert real is not None and clean is not None
    job = production_job(number, 1).job
    assert real.fault.duration is not None and job.fault.duration is not None
    assert real.fault.duration / STEPS == pytest.approx(job.fault.duration / job.steps, abs=0.02)
    assert clean.fault == real.fault
    assert (clean.megatron, clean.noise.rank_sigma) == (None, 0.004)


def _is_part_of_a_run(number: int) -> bool:
    each = production_job(number, 1)
    return (
        each.label == PART
        and each.job.fault.duration is not None
        and compared_job(Level.REAL, number, 1) is not None
    )
