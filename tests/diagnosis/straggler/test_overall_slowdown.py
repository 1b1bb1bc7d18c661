"""What a job would gain if every operation took what is usual for its type."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.straggler.engine import diagnose
from support.diagnosis.operations import SmallJob, last_end
from support.retimer.real_jobs import ABSENT, TABLES, real

recorded = pytest.mark.skipif(not TABLES.is_dir(), reason=ABSENT)


@recorded
@pytest.mark.parametrize(
    ("name", "published", "by_operation"),
    [
        ("job-a", 1.9730, {"backward-compute": 1.5805, "forward-compute": 1.3689}),
        ("job-b", 1.1787, {"forward-compute": 1.0875, "backward-compute": 1.0742}),
    ],
)
def test_published_analysis(name: str, published: float, by_operation: Mapping[str, float]) -> None:
    """It is within 2 % of what the authors of the tables published for them, and so is each operation. Their
    results lie beside the tables in ByteDance-Seed/StragglerAnalysis: `blocking_slowdown` and
    `blocking_decompose_by_optype` in data/result-AR.json and data/result-ST.json."""
    verdict = diagnose(real(name).table)
    assert verdict.slowdown_if_all_fixed == pytest.approx(published, rel=0.02)
    held = _by_operation(verdict.evidence)
    assert list(held)[:2] == list(by_operation)
    assert {each: held[each] for each in by_operation} == pytest.approx(by_operation, rel=0.02)


def test_work_is_kept() -> None:
    """The seconds of a slow rank are spread over all ranks, so the ideal job computes as much as this one."""
    even = SmallJob(dp=8, noise=0.0)
    even.compute *= 9.0 / 8.0
    slow = SmallJob(dp=8, noise=0.0).slow_rank(3, 2.0).table()
    verdict = diagnose(slow)
    assert verdict.slowdown_if_all_fixed == pytest.approx(last_end(slow) / last_end(even.table()), rel=0.01)
    assert set(_by_operation(verdict.evidence)) == {"forward", "backward"}


def test_noise_costs_as_well() -> None:
    """A job without a cause waits for the latest of its ranks in every step."""
    verdict = diagnose(SmallJob(dp=16, noise=0.05).table())
    assert verdict.cause is Cause.NONE
    assert verdict.slowdown_if_all_fixed is not None
    assert 1.02 < verdict.slowdown_if_all_fixed < 1.2
    even = diagnose(SmallJob(dp=16, noise=0.0).table())
    assert even.slowdown_if_all_fixed == pytest.approx(1.0, abs=0.005)


def _by_operation(evidence: Mapping[str, object]) -> Mapping[str, float]:
    held = evidence["slowdown_by_operation"]
    assert isinstance(held, Mapping)
    return held
