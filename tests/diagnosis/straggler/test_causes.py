"""All causes of one slowdown: which are separate, in which order, and what each of them costs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.straggler.case import Candidate, Case, Ideal
from rankwatch_diagnosis.straggler.engine import diagnose
from rankwatch_diagnosis.straggler.pricing import found_cause, price
from rankwatch_diagnosis.straggler.thresholds import DEFAULT
from rankwatch_diagnosis.straggler.verdict import FoundCause, Verdict
from support.diagnosis.operations import SmallJob, last_end


def test_cost_of_each() -> None:
    """Each cause costs what the job loses by it alone, and the head of the verdict is the first of them."""

    def later(job: SmallJob) -> SmallJob:
        return job.slow_rank(2, 1.6, first=20)

    def earlier(job: SmallJob) -> SmallJob:
        return job.slow_rank(5, 1.3, first=4, end=18)

    both = earlier(later(_job())).table()
    verdict = diagnose(both)
    found = [(each.ranks, each.first_step, each.last_step, each.share_of_steps) for each in verdict.causes]
    assert found == [((2,), 20, 39, 0.5), ((5,), 4, 17, 14 / 40)]
    for cause, left in zip(verdict.causes, (earlier, later), strict=True):
        _check_cost(cause, last_end(both), last_end(left(_job()).table()))
    first = verdict.causes[0]
    for name in ("cause", "phase", "ranks", "stages", "first_step", "slowdown", "lost_rank_seconds"):
        assert getattr(verdict, name) == getattr(first, name)
    assert dict(first.evidence).items() <= dict(verdict.evidence).items()


def test_cost_of_a_rank_behind_a_slower_one() -> None:
    """Alone it gains little, because the other one is as late. It is listed all the same."""
    both = _job().slow_rank(2, 2.0).slow_rank(5, 1.2).table()
    slower, behind = diagnose(both).causes
    assert (slower.ranks, behind.ranks) == ((2,), (5,))
    truth = last_end(both) / last_end(_job().slow_rank(5, 1.2).table())
    assert slower.slowdown == pytest.approx(truth, rel=0.03)
    assert behind.slowdown == pytest.approx(1.0, abs=0.002)


def test_ranks_that_throttle_together() -> None:
    """The ranks of a node that slow down at once are one cause: one of them alone would gain nothing."""
    job = _job()
    for rank in (4, 5, 6):
        job.slow_rank(rank, 1.4, first=10)
    (cause,) = diagnose(job.table()).causes
    assert (cause.ranks, cause.first_step) == ((4, 5, 6), 10)
    assert [each["rank"] for each in _listed(cause)] == [4, 5, 6]
    _check_cost(cause, last_end(job.table()), last_end(_job().table()))


def test_causes_under_none() -> None:
    """What costs less than 1 % is no verdict, but it is listed with its cost."""
    job = SmallJob(dp=4, pp=2, steps=40, noise=0.005)
    job.compute[:, :, 1] *= 1.25
    job.compute[:, :, 0] *= 1.2
    job.loading[20:] *= 2.0
    job.loading[:20, 2] *= 3.0
    verdict = diagnose(job.table())
    small = [each for each in verdict.causes if each.slowdown is not None and each.slowdown < 1.01]
    assert verdict.cause is Cause.NONE
    assert small and verdict.causes == tuple(small)
    assert all(each.lost_rank_seconds is not None for each in small)


def test_proved_before_suspected() -> None:
    """A suspicion that costs more is no reason to be silent about what is certain."""
    job = SmallJob(dp=2, steps=40).slow_rank(1, 1.2)
    job.transfer[20:] *= 12.0
    verdict = diagnose(job.table())
    proved, suspected = verdict.causes
    assert (verdict.cause, proved.cause, proved.certain) == (Cause.NETWORK, Cause.NETWORK, True)
    assert (suspected.cause, suspected.certain) == (Cause.INCONCLUSIVE, False)
    assert proved.slowdown is not None and suspected.slowdown is not None
    assert 1.03 < proved.slowdown < suspected.slowdown


def test_stage_that_is_slow_now_and_then() -> None:
    """Its ranks are late in turn as well, which explains the same time and names nobody."""
    job = SmallJob(dp=4, pp=4, steps=60, noise=0.01)
    job.compute[::3, :, 2] *= 1.4
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.stages) == (Cause.SLOW_STAGE, (2,))


def test_bounds_beside_a_cause() -> None:
    """An upper bound is no cost: beside a slow rank it comes last, as what it may cost at most."""
    job = SmallJob(dp=8, steps=40, transfer_seconds=0.05).slow_rank(3, 1.5)
    *_, last = diagnose(job.table()).causes
    assert (last.cause, last.certain, last.slowdown) == (Cause.NETWORK, False, None)
    assert float(str(last.evidence["slowdown_at_most"])) > 1.2


def test_more_causes_than_are_priced() -> None:
    """Those with the least excess stay without a price, and come last."""
    case = Case(SmallJob(dp=8, steps=8).table(), DEFAULT)
    rows = np.flatnonzero(case.seconds > 0.0)[:60]
    causes = [
        Candidate(
            cause=Cause.NETWORK,
            ideal=Ideal(rows[index : index + 1], case.seconds[rows[index : index + 1]] * index / 60.0),
            first_step=0,
            evidence={"excess": 1.0 - index / 60.0},
        )
        for index in range(60)
    ]
    priced = price(case, causes)
    gains = [np.subtract(*case.own_seconds(each)) for each in priced]
    without = [math.isfinite(each.slowdown) for each in priced].index(False)
    assert min(gains[:without]) >= max(gains[without:])
    found = [found_cause(case, each) for each in priced]
    prices = [each.slowdown for each in found if each.slowdown is not None]
    assert len(found) == 60
    assert 40 <= len(prices) < 60 and prices == sorted(prices, reverse=True)
    assert all(each.slowdown is None and each.lost_rank_seconds is None for each in found[len(prices) :])


def _job() -> SmallJob:
    return SmallJob(dp=8, steps=40, noise=0.01)


def _check_cost(cause: FoundCause, seconds: float, without: float) -> None:
    """Within 5 % of the true excess."""
    assert cause.slowdown is not None and cause.lost_rank_seconds is not None
    assert cause.slowdown - 1.0 == pytest.approx(seconds / without - 1.0, rel=0.05)
    assert cause.lost_rank_seconds == pytest.approx(8 * (seconds - without), rel=0.05)


def _listed(cause: FoundCause | Verdict, name: str = "slow_ranks") -> list[dict[str, object]]:
    listed = cause.evidence[name]
    assert isinstance(listed, list)
    return listed
