"""Loss statistics: noise is no alarm, a spike is counted, a divergence or a plateau stands out for good."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from rankwatch_agent.training.boxes.totals import RankTotals
from rankwatch_agent.training.learning.loss import (
    CONFIRM_STEPS,
    DIVERGENCE_SIGMAS,
    FROZEN_SECONDS,
    FROZEN_STEPS,
    GRACE_STEPS,
    LossStatistics,
    RelearnReason,
)
from rankwatch_agent.training.learning.loss_blocks import (
    MOST_LEVELS,
    PLATEAU_IMPROVEMENT,
    LossHistory,
    Plateau,
)


def curve(seed: int, steps: int, noise: float = 0.05) -> list[float]:
    """A falling loss with Gaussian noise."""
    source = random.Random(seed)
    return [1.5 + 4.0 * math.exp(-step / 80) + source.gauss(0.0, noise) for step in range(steps)]


def add(statistics: LossStatistics, values: Iterable[float], begin: int | None = None) -> bool:
    """Add these losses, those of the steps from `begin` on; whether they diverge at any of them."""
    seen = False
    for step, value in enumerate(values, begin or 0):
        statistics.add(value, step=-1 if begin is None else step)
        seen |= statistics.diverging
    return seen


def after(values: Iterable[float]) -> LossStatistics:
    statistics = LossStatistics()
    add(statistics, values)
    return statistics


@pytest.mark.parametrize("seed", range(20))
def test_healthy_curve(seed: int) -> None:
    """A healthy curve never stands above its trend. At no step of 1,000, and with hardly a spike."""
    statistics = LossStatistics()
    for value in curve(seed, 1000):
        statistics.add(value)
        assert not statistics.deviation > 3.0
    assert statistics.spikes <= 1
    assert statistics.nonfinite == 0
    assert statistics.sigma == pytest.approx(0.05, rel=0.5)


def test_single_spike() -> None:
    """A single spike is counted and soon forgotten. It recovers at once: information, no divergence."""
    statistics = after(curve(1, 400))
    before = statistics.trend
    add(statistics, [before + 5.0])
    assert statistics.spikes == 1
    add(statistics, curve(2, 430)[400:])
    assert abs(statistics.deviation) < 3.0
    assert statistics.trend == pytest.approx(before, abs=0.1)


def test_divergence() -> None:
    """It is seen within twenty steps and stays: a loss that climbs stands ever further above its trend."""
    statistics = after(curve(3, 400))
    level = statistics.trend
    add(statistics, [level + 0.1 * step for step in range(20)])
    assert statistics.deviation > 6.0
    for _ in range(60):
        statistics.add(level + 3.0)
        assert statistics.deviation > 6.0


def test_slow_drift() -> None:
    """One that takes the trend along, by a thousandth each step, is seen against the lowest level."""
    losses = [loss * (1.0 + 0.001 * max(0, step - 400)) for step, loss in enumerate(curve(5, 800))]
    assert not after(losses[:400]).deviation > 3.0
    statistics = after(losses)
    assert statistics.deviation > DIVERGENCE_SIGMAS
    assert statistics.expected < statistics.trend


@pytest.mark.parametrize("seed", range(5))
def test_correlated_noise(seed: int) -> None:
    """Neighbours are alike where noise is carried over, but the averages sway: no divergence."""
    source, carried = random.Random(seed), 0.0
    statistics = LossStatistics()
    for step in range(1500):
        carried = 0.95 * carried + source.gauss(0.0, 0.015)
        statistics.add(1.5 + 4.0 * math.exp(-step / 80) + carried)
        assert not statistics.deviation > DIVERGENCE_SIGMAS


def test_divergence_is_certain() -> None:
    """A loss that stays up diverges after some steps, and one that falls back does not."""
    stays, recovers = after(curve(3, 400)), after(curve(3, 400))
    level = stays.trend
    for step in range(2 * CONFIRM_STEPS):
        stays.add(level + 3.0)
        recovers.add(level + 3.0 * math.exp(-step / 8))
        assert stays.diverging == (step + 1 >= CONFIRM_STEPS)
        assert not recovers.diverging
    assert recovers.deviation < stays.deviation


@pytest.mark.parametrize("seed", range(3))
def test_drift_within_noise(seed: int) -> None:
    """A drift that no single value shows adds up. It diverges before it is four sigma high."""
    source = random.Random(seed)
    statistics = after(2.0 + source.gauss(0.0, 0.1) for _ in range(500))
    steps = 0
    while not statistics.diverging:
        steps += 1
        statistics.add(2.0 + 0.003 * steps + source.gauss(0.0, 0.1))
    assert 0.003 * steps < 0.4


def test_growing_oscillation() -> None:
    """A loss that swings ever further diverges, although it comes back with each swing."""
    source = random.Random(1)
    losses = [2.0 + source.gauss(0.0, 0.02) for _ in range(550)]
    for step in range(150):
        losses[400 + step] += 0.02 * math.exp(step / 40) * math.sin(step)
    assert after(losses).diverging


def test_swing_through_the_trend() -> None:
    """A loss that rises again after it fell far below its trend diverges. A spike does not fall so far."""
    source = random.Random(1)
    steady = [2.0 + source.gauss(0.0, 0.05) for _ in range(600)]
    swings, spikes = after(steady), after(steady)
    for step in range(24):
        swing = (0.3 + 0.03 * step) * math.sin(2.0 * math.pi * step / 16)
        swings.add(2.0 + swing)
        spikes.add(2.0 + max(0.0, swing))
        assert not spikes.diverging
    assert swings.diverging


def test_spikes_that_recover() -> None:
    """Spikes of several steps, one after the other, are no divergence."""
    losses = curve(8, 2000)
    for begin in range(100, 2000, 150):
        for offset in range(40):
            losses[begin + offset] *= 1.0 + 2.0 * math.exp(-offset / 8)
    statistics = LossStatistics()
    assert not add(statistics, losses)
    assert statistics.spikes > 20


def test_spike_that_settles_higher() -> None:
    """What stays at a part of its spike has not recovered."""
    losses = curve(9, 600)
    for step in range(200):
        losses[400 + step] += 1.0 + 5.0 * math.exp(-step / 8)
    assert after(losses).diverging


def test_frozen_reference_is_bounded() -> None:
    """A divergence does not become the trend while an alert may wait for it. For ever it does not alarm."""
    statistics, at = after(curve(3, 400)), 1.0
    for step in range(100 * FROZEN_STEPS):
        at = 1.0 + 0.1 * step  # ten steps a second: a thousand steps are too short for an alert to wait
        statistics.add(4.5, at)
        if step > CONFIRM_STEPS and not statistics.diverging:
            break
        assert step < 20 or statistics.deviation > DIVERGENCE_SIGMAS
    assert FROZEN_SECONDS <= at < FROZEN_SECONDS + 10.0
    assert statistics.trend == pytest.approx(4.5)
    statistics.add(4.5, at)
    assert abs(statistics.deviation) < 1.0


@pytest.mark.parametrize(("rise", "diverges"), [(0.2, False), (1.0, True)])
def test_known_rise(rise: float, diverges: bool) -> None:
    """After a known change of the learning rate the loss may rise by a part, but not diverge."""
    statistics = after(curve(3, 400))
    statistics.relearn(RelearnReason.LEARNING_RATE)
    losses = curve(4, 400 + 2 * GRACE_STEPS)[400:]
    risen = (loss * (1.0 + rise * min(1.0, step / 50)) for step, loss in enumerate(losses))
    assert add(statistics, risen) == diverges


def restarted(
    losses: list[float], reason: RelearnReason = RelearnReason.RESTART, begin: int = 0
) -> LossStatistics:
    """Statistics that have seen these losses from this step on, before a restart."""
    statistics = LossStatistics()
    assert not add(statistics, losses, begin)
    statistics.relearn(reason)
    return statistics


@pytest.mark.parametrize("begin", [100, 350, 400])
def test_restart_that_stands_higher(begin: int) -> None:
    """A run that goes on far above its loss of the same step diverges: a bad checkpoint, other weights."""
    statistics, before = restarted(curve(3, 400)), curve(4, 500)[begin:]
    assert add(statistics, [loss + 1.5 for loss in before[:60]], begin)
    assert statistics.deviation > DIVERGENCE_SIGMAS
    assert statistics.expected < before[0] + 1.0


@pytest.mark.parametrize("seed", range(5))
def test_restart_that_stands_higher_in_noise(seed: int) -> None:
    """The mean tells it where no single value does: noise of a third, a loss higher by two thirds."""
    losses = noisy([2.0] * 600, 0.33, seed)
    assert add(restarted(losses[:400]), [1.66 * loss for loss in losses[400:]], 400)


@pytest.mark.parametrize("begin", [0, 100, 350, 400])
def test_restart_with_a_bump(begin: int) -> None:
    """A run that goes on from an earlier step has the loss of that step, and a little more for a while."""
    losses = enumerate(curve(4, begin + 400)[begin:])
    bump = [loss * (1.0 + 0.15 * math.exp(-step / 40)) for step, loss in losses]
    assert not add(restarted(curve(3, 400)), bump, begin)


@pytest.mark.parametrize(("reason", "begin"), [(RelearnReason.RESTART, 200), (RelearnReason.DATASET, 1000)])
def test_restart_at_an_unknown_step(reason: RelearnReason, begin: int) -> None:
    """Before the first step that is known, the loss may stand anywhere, and so it may on other data."""
    statistics = restarted(curve(3, 400), reason, 1000)
    assert not add(statistics, [6.0 + loss for loss in curve(4, 800)[400:]], begin)


def test_restart_late_in_a_long_run() -> None:
    """What is kept of a long run is bounded, and still tells the loss of a step."""
    history = LossHistory()
    for step in range(0, 1_000_000, 8):
        history.add(step, 1e6 - step)
    for step in (300_000, 990_000, 300_008, 0, 8, 300_016):
        history.add(step, 1e6 - step)
    assert history.at(500_000) == pytest.approx(500_000, abs=20_000)
    assert history.at(2_000_000) < 20_000
    assert len(history) <= MOST_LEVELS


def test_other_data() -> None:
    """On other data the loss may stand anywhere and settle."""
    statistics = after(curve(3, 400))
    statistics.relearn(RelearnReason.DATASET)
    rises = (4.0 + 0.3 * min(1.0, step / 100) for step in range(1000))
    assert not add(
        statistics, (loss * (1.0 + 0.02 * math.sin(7.0 * step)) for step, loss in enumerate(rises))
    )


def test_trend_that_always_follows() -> None:
    """Other values than losses may rise: without a number of steps to confirm, nothing diverges."""
    statistics = LossStatistics(confirm_steps=math.inf)
    assert not add(statistics, (1.0 + 0.0003 * step + 0.01 * math.sin(7.0 * step) for step in range(3000)))
    assert statistics.trend == pytest.approx(1.9, abs=0.1)


def test_new_process_new_trend() -> None:
    """It may go on from an earlier step, with the higher loss of that step; totals go on."""
    totals = RankTotals(lambda _: None, max_names=10)
    statistics = totals.learning.loss
    add(statistics, [*curve(6, 300), 9.0, math.nan])
    trend = statistics.trend
    totals.begin_process()
    assert statistics.trend == trend  # until there is a loss: a NaN would be exported
    assert math.isnan(statistics.deviation)
    add(statistics, [4.0] * 40)
    assert abs(statistics.deviation) < 1.0
    assert (statistics.count, statistics.spikes, statistics.nonfinite) == (341, 1, 1)


def test_nonfinite_values() -> None:
    """Values that are not finite are counted and leave the rest alone. NaN must not poison an average."""
    statistics = after([*curve(4, 100), math.nan, math.inf, -math.inf])
    assert statistics.nonfinite == 3
    assert math.isfinite(statistics.trend)
    assert math.isfinite(statistics.deviation)


def test_constant_loss() -> None:
    """A constant loss has no deviation. Zero noise is no reason to divide by it."""
    assert after([2.0] * 100).deviation == pytest.approx(0.0)


def test_huge_loss() -> None:
    """The distance of two such values is infinite, and infinity minus itself is NaN."""
    assert math.isfinite(after([1e308, -1e308, 1e308, 1.0, 2.0] * 20).trend)


STEPS = 2000


def improvements(losses: list[float], steps: int = STEPS) -> list[float]:
    """What a window of so many steps tells after each step from its first on."""
    plateau, found = Plateau(steps), []
    for step, loss in enumerate(losses):
        plateau.add(loss, step)
        found.append(plateau.improvement)
    return [each for each in found if not math.isnan(each)]


def noisy(clean: list[float], noise: float, seed: int) -> list[float]:
    source = random.Random(seed)
    return [loss * (1.0 + noise * source.gauss(0.0, 1.0)) for loss in clean]


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.03])
def test_loss_that_improves(noise: float) -> None:
    """A power law as of a real training is no plateau: in each fifth of the run it falls by a part."""
    clean = [1.7 + 6.0 * (1.0 + step / 20) ** -0.4 for step in range(5 * STEPS)]
    found = improvements(noisy(clean, noise, 1))
    assert len(found) > 3 * STEPS
    assert min(found) > PLATEAU_IMPROVEMENT


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.01])
def test_loss_that_stands(noise: float) -> None:
    """A loss that falls no more is a plateau once that fills the window."""
    clean = [2.0 + 2.0 * math.exp(-step / 500) for step in range(6 * STEPS)]
    found = improvements(noisy(clean, noise, 2))
    assert found[0] > PLATEAU_IMPROVEMENT
    assert sum(each < PLATEAU_IMPROVEMENT for each in found[-STEPS:]) > 0.9 * STEPS


def test_noise_that_hides_an_improvement() -> None:
    """Where the noise could hide an improvement, nothing is called a plateau."""
    clean = [2.0 * 0.98 ** (step / 400) for step in range(4000)]
    assert min(improvements(noisy(clean, 0.3, 3), 400)) > PLATEAU_IMPROVEMENT


def test_repeated_steps() -> None:
    """Steps that a restart repeats tell nothing new, and steps that are left out make no window longer."""
    once, again = Plateau(STEPS), Plateau(STEPS)
    losses = [3.0 - step / 4000 for step in range(2 * STEPS)]
    for step, loss in enumerate(losses):
        once.add(loss, step)
        again.add(loss, step)
        if step == 1500:
            for repeated in range(1000, 1501):
                again.add(9.0, repeated)
    again.add(math.nan, 2 * STEPS)
    assert once.improvement == again.improvement
    assert once.improvement == pytest.approx(0.25, rel=0.2)
