"""What another checkpoint interval, no straggler and fewer restarts would be worth."""

from __future__ import annotations

import pytest

from rankwatch.conventions.states import GoodputState
from rankwatch_diagnosis.goodput.model import (
    AttemptGoodput,
    IntervalAdvice,
    RunGoodput,
    Saves,
    interval_advice,
    lost_share,
    poisson_interval,
    restart_seconds,
    what_ifs,
)

HOUR = 3600.0
SAVES = Saves(count=100, interval_seconds=HOUR, blocking_seconds=30.0, seconds=30.0)


def goodput(attempts: int, *, hours: float = 100.0, saves: Saves | None = SAVES) -> RunGoodput:
    """A run of 8 ranks with attempts of equal length, side by side in time."""
    length = hours / attempts * HOUR
    lost = (GoodputState.STRAGGLER, GoodputState.STARTUP, GoodputState.REPLAYED, GoodputState.DOWN)
    each_seconds = {GoodputState.PRODUCTIVE: 6 * length, **dict.fromkeys(lost, 0.5 * length)}
    times = [{"started": number * length, "ended": (number + 1) * length} for number in range(attempts)]
    return RunGoodput(
        run="r",
        source="test",
        seconds={state: attempts * seconds for state, seconds in each_seconds.items()},
        attempts=tuple(
            AttemptGoodput(number=number, world_size=8, seconds=each_seconds, **each)
            for number, each in enumerate(times)
        ),
        saves=saves,
    )


def test_ratios() -> None:
    """ETTR is the product of scheduling and runtime goodput."""
    run = goodput(4)
    assert run.ettr == pytest.approx(6 / 8)
    assert run.scheduling == pytest.approx(7.5 / 8)
    assert run.ettr == pytest.approx((run.scheduling or 0) * (run.runtime or 0))


def advice_for(run: RunGoodput) -> IntervalAdvice:
    advice = interval_advice(run)
    assert isinstance(advice, IntervalAdvice)
    return advice


def test_interval_advice() -> None:
    """sqrt(2 x 30 s x 25 h) is 38.7 minutes. The range is that of Garwood's table: 1.37 to 9.15 for 4."""
    advice = advice_for(goodput(5))
    assert advice.failure_interval_seconds == pytest.approx(25 * HOUR)
    assert advice.best_seconds == pytest.approx(2323.8, abs=0.1)
    assert advice.failure_interval_low == pytest.approx(100 * HOUR / 9.1535, rel=1e-4)
    assert advice.failure_interval_high == pytest.approx(100 * HOUR / 1.3663, rel=1e-4)
    assert advice.low_seconds < advice.best_seconds < advice.high_seconds
    assert advice.gain == pytest.approx(0.0283333 - 0.0258199, abs=1e-6)


def test_best_interval_costs_least() -> None:
    """Neither a longer nor a shorter interval costs less."""
    best = advice_for(goodput(5)).best_seconds
    least = lost_share(30.0, best, 25 * HOUR)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert lost_share(30.0, factor * best, 25 * HOUR) > least


def test_save_longer_than_advice() -> None:
    """A save that goes on beside training must end before the next one begins."""
    saves = Saves(count=100, interval_seconds=2 * HOUR, blocking_seconds=0.5, seconds=HOUR)
    assert advice_for(goodput(5, saves=saves)).best_seconds == HOUR


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (goodput(1), "not enough interruptions"),
        (goodput(2), "not enough interruptions"),
        (goodput(5, saves=None), "no interval between saves"),
        (
            goodput(5, saves=Saves(count=9, interval_seconds=60, blocking_seconds=0.0, seconds=9)),
            "block nobody",
        ),
        (goodput(200, hours=1.0), "no interval helps"),
    ],
)
def test_no_advice(run: RunGoodput, reason: str) -> None:
    """Where too little is known there is a reason in words, and no number."""
    advice = interval_advice(run)
    assert isinstance(advice, str)
    assert reason in advice


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(0, 0.0, 2.9957), (1, 0.0513, 4.7439), (10, 5.4254, 16.9622), (500, 463.9, 538.4)],
)
def test_poisson_interval(count: int, low: float, high: float) -> None:
    """The limits of Garwood's table for 90 %."""
    assert poisson_interval(count, 0.90) == (pytest.approx(low, rel=1e-3), pytest.approx(high, rel=1e-3))


def test_restarts() -> None:
    """The first start is no restart; the time between attempts is."""
    length = 25 * HOUR
    assert restart_seconds(goodput(4)) == pytest.approx(3 * (0.5 + 0.5) * length + 4 * 0.5 * length)
    assert restart_seconds(goodput(1)) == 0.0


def test_what_ifs() -> None:
    """The same work in less time; the change that saves most comes first."""
    halved, removed = what_ifs(goodput(4))
    assert (halved.change, removed.change) == ("restarts_halved", "straggler_removed")
    assert removed.ettr == pytest.approx(6 / 7.5)
    assert removed.gain == pytest.approx(6 / 7.5 - 6 / 8)
