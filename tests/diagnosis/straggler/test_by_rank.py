"""Every rank beside its peers: what it takes beyond them, where its time goes, and what that costs."""

from __future__ import annotations

import math

import pytest

from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.straggler.by_rank import ByRank, look_by_rank
from rankwatch_diagnosis.straggler.engine import examine
from rankwatch_diagnosis.straggler.verdict import Verdict
from support.diagnosis.operations import SmallJob


def look(job: SmallJob) -> tuple[Verdict, ByRank]:
    verdict, case = examine(job.table())
    assert case is not None
    return verdict, look_by_rank(case, verdict)


def test_slow_rank() -> None:
    """It comes first with its residual and its window, and with the price that the verdict gives."""
    verdict, found = look(SmallJob(dp=4, pp=2, steps=30).slow_rank(5, 1.4, first=12))
    first = found.rows[0]
    assert (first.rank, first.stage, first.replica, first.named) == (5, 1, 2, True)
    assert first.worst_residual_ratio == pytest.approx(0.4, abs=0.06)
    assert (first.worst_first_step, first.worst_last_step) == (12, 29)
    assert first.slowdown == verdict.slowdown
    assert first.lost_rank_seconds == pytest.approx(verdict.lost_rank_seconds)
    assert [each.rank for each in found.rows if each.named] == [5]
    assert all(abs(each.residual_ratio) < 0.05 for each in found.rows[1:])


def test_short_fault() -> None:
    """A fault in a third of the steps vanishes in the median, not in the worst window and the price."""
    _, found = look(SmallJob(steps=30).slow_rank(2, 1.5, first=10, end=20))
    row = next(each for each in found.rows if each.rank == 2)
    assert abs(row.residual_ratio) < 0.05
    assert (row.worst_first_step, row.worst_last_step) == (10, 19)
    assert row.worst_residual_ratio == pytest.approx(0.5, abs=0.06)
    assert row.slowdown > 1.1


def test_slow_data_loading() -> None:
    """Host work counts as own work: who waits long for its batches lies above its peers."""
    job = SmallJob(steps=20)
    job.loading[:, 6] = 30.0
    verdict, found = look(job)
    assert (verdict.ranks, found.rows[0].rank) == ((6,), 6)
    assert found.rows[0].residual_ratio == pytest.approx(0.058 / 0.122, abs=0.1)
    assert found.rows[0].data_loading_seconds > 10 * found.rows[1].data_loading_seconds


def test_heavy_stage() -> None:
    """Ranks of a heavy stage have the same work as their peers, so none of them lies above."""
    job = SmallJob(dp=4, pp=2, steps=20)
    job.compute[:, :, 1] *= 1.6
    verdict, found = look(job)
    assert verdict.cause is Cause.SLOW_STAGE
    assert all(abs(each.residual_ratio) < 0.05 and not each.named for each in found.rows)


def test_parts_of_a_step() -> None:
    """Own work, transfers and waits of a rank are the step. Only the slow rank waits for nobody."""
    _, found = look(SmallJob(steps=20).slow_rank(3, 1.5))
    for each in found.rows:
        own = each.compute_seconds + each.data_loading_seconds + each.other_seconds
        assert own + each.transfer_seconds + each.wait_seconds == pytest.approx(found.step_seconds)
        assert (each.wait_seconds < 0.1 * found.step_seconds) == (each.rank == 3)


def test_two_ranks() -> None:
    """Of two ranks each is the other's only peer, and neither is named."""
    _, found = look(SmallJob(dp=2, steps=20).slow_rank(1, 1.3))
    assert [each.rank for each in found.rows] == [1, 0]
    assert {each.compared_with for each in found.rows} == {"one peer"}
    assert not any(each.named for each in found.rows)
    assert found.rows[0].residual_ratio == pytest.approx(0.3, abs=0.05)
    assert found.rows[1].slowdown == pytest.approx(1.0, abs=0.005)


def test_many_ranks() -> None:
    """Where replays would take too long, ranks with little excess have no price; the named one has."""
    verdict, case = examine(SmallJob(dp=32, steps=12).slow_rank(30, 1.3).table())
    assert case is not None
    found = look_by_rank(case, verdict, most_replayed_rows=0)
    assert found.rows[0].rank == 30
    assert found.rows[0].slowdown > 1.1
    assert sum(math.isnan(each.slowdown) for each in found.rows) > 0


def test_transfers_only() -> None:
    """A table without compute has nothing to compare, and is no error."""
    table = SmallJob(steps=12).table()
    verdict, case = examine(table.take(table.kind != 0))
    assert case is not None
    assert len(look_by_rank(case, verdict).rows) == 8
