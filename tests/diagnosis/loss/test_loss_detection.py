"""Anomalies of losses: healthy curves raise none, divergences are found, spikes are information."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from rankwatch_agent.training.learning.loss import DIVERGENCE_SIGMAS
from rankwatch_alerts.config import RuleConfig
from rankwatch_diagnosis.loss.anomaly import GAP_VALUES, Anomaly, Kind, Severity
from rankwatch_diagnosis.loss.detection import MAX_LISTED, LossVerdict, detect
from rankwatch_diagnosis.loss.reading import ReadCounts, StepValues
from support.diagnosis.loss_curves import DIVERGING, HEALTHY, Curve, curves


def verdict(rows: Iterable[StepValues]) -> LossVerdict:
    return detect(rows, ReadCounts())


def rows(losses: Iterable[float], begin: int = 0) -> Iterable[StepValues]:
    return (StepValues(step, loss) for step, loss in enumerate(losses, begin))


def anomalies(losses: Iterable[float]) -> tuple[Anomaly, ...]:
    return verdict(rows(losses)).anomalies


def divergence(*losses: float) -> Anomaly:
    """The only one of these losses."""
    (found,) = (each for each in anomalies(losses) if each.kind is Kind.DIVERGENCE)
    return found


def told(anomaly: Anomaly) -> tuple[int, Kind, Severity]:
    return anomaly.step, anomaly.kind, anomaly.severity


def of_curve(curve: Curve) -> tuple[Anomaly, ...]:
    taken = map(StepValues, curve.steps, curve.losses)
    return detect(taken, ReadCounts(), new_levels=curve.new_levels).anomalies


def steady(count: int) -> list[float]:
    """A loss of 2 with a little noise."""
    return [2.0 + 0.02 * math.sin(7.0 * step) for step in range(count)]


def test_threshold_of_the_alert() -> None:
    """The command judges as RankwatchLossDiverging does with its defaults."""
    assert RuleConfig().loss_deviation == DIVERGENCE_SIGMAS


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_curves(kind: str) -> None:
    """No alarm but information, on a few of the curves of tests/bench/loss_detection.py."""
    for curve in curves(kind, 4, seed=1, steps=3000):
        assert [anomaly for anomaly in of_curve(curve) if anomaly.severity != Severity.INFO] == []


@pytest.mark.parametrize("kind", DIVERGING)
def test_diverging_curves(kind: str) -> None:
    """A diverging curve is critical and not before it diverges. Each of a few is found within 100 steps, of a
    gradual divergence from where the smoothed curve shows it. A swing that comes back is a warning, and so
    may be all of an oscillation, and a loss that falls on after a bad restart until it is where it was."""
    for curve in curves(kind, 4, seed=1):
        grave = [anomaly for anomaly in of_curve(curve) if anomaly.severity != Severity.INFO]
        assert curve.onset is not None
        assert curve.turn is not None
        assert curve.steps[curve.turn] <= grave[0].step
        assert grave[0].confirmed_step is not None
        assert grave[0].confirmed_step - curve.steps[curve.onset] < 100
        comes_back = kind in ("growing oscillation", "bad restart")
        assert comes_back or Severity.CRITICAL in {each.severity for each in grave}


def test_single_spike() -> None:
    """A single spike is information with value and expectation. It recovers at once."""
    losses = steady(200)
    losses[150] = 6.0
    (anomaly,) = anomalies(losses)
    assert (told(anomaly), anomaly.value) == ((150, Kind.SPIKE, Severity.INFO), 6.0)
    assert anomaly.expected == pytest.approx(2.0, abs=0.1)
    assert anomaly.recovered


def test_close_spikes_are_one_anomaly() -> None:
    """Spikes close to each other are one excursion. One anomaly per excursion, not per step."""
    losses = steady(300)
    losses[150] = losses[155] = losses[160] = 6.0
    (anomaly,) = anomalies(losses)
    assert (anomaly.step, anomaly.last_step, anomaly.values) == (150, 160, 3)


def test_divergence_severity() -> None:
    """One that comes back is a warning, because it needs nobody at once; one that stays is critical."""
    high = [3.0] * 100
    back = divergence(*steady(200), *high, *steady(300))
    stays = divergence(*steady(200), *high)
    assert (back.step, back.severity, back.recovered) == (200, Severity.WARNING, True)
    assert (stays.step, stays.severity, stays.recovered) == (200, Severity.CRITICAL, False)
    assert back.confirmed_step == stays.confirmed_step is not None


def test_rise_at_the_end_of_the_file() -> None:
    """It is a warning: ten steps are too few to tell a spike from the start of a divergence."""
    (anomaly,) = anomalies(steady(200) + [4.0] * 10)
    assert (told(anomaly)[1:], anomaly.confirmed_step) == ((Kind.DIVERGENCE, Severity.WARNING), None)


def test_nan_severity() -> None:
    """A NaN that stays is critical and one that passes a warning. One anomaly each."""
    losses = steady(100)
    losses[50] = math.nan
    (passes,) = anomalies(losses)
    (stays,) = anomalies(steady(100) + [math.inf] * 100)
    assert told(passes) == (50, Kind.NON_FINITE, Severity.WARNING)
    assert (stays.step, stays.values, stays.severity) == (100, 100, Severity.CRITICAL)


def test_restart() -> None:
    """It is counted, and a loss as high as that of the same step before is no divergence."""
    losses = [2.0 + 3.0 * math.exp(-step / 60) + 0.01 * math.sin(7 * step) for step in range(400)]
    rows = [StepValues(step, loss) for begin in (0, 40) for step, loss in enumerate(losses) if step >= begin]
    found = verdict(rows)
    assert (found.anomalies, found.counts.restarts) == ((), 1)


def test_update_norm_precedes_divergence() -> None:
    """An update norm that doubles is reported with the divergence after it. It moves before the loss does."""
    rows = [
        StepValues(
            step, loss, update_norm=0.1 * (1 + 0.1 * math.sin(5 * step)) * (3.0 if step >= 290 else 1.0)
        )
        for step, loss in enumerate(steady(300) + [3.0] * 60)
    ]
    found = verdict(rows)
    jump, divergence = found.anomalies
    assert told(jump) == (290, Kind.UPDATE_NORM_JUMP, Severity.WARNING)
    assert (divergence.step, found.precursors(divergence)) == (300, (jump,))
    assert found.precursors(jump) == ()


def test_single_gradient_norm_jump() -> None:
    """A gradient norm that jumps once is information. Odd batches are common."""
    norms = [1.0 + 0.1 * math.sin(5 * step) for step in range(200)]
    norms[120] = 9.0
    (anomaly,) = verdict(StepValues(step, 2.0, grad_norm=norm) for step, norm in enumerate(norms)).anomalies
    assert told(anomaly) == (120, Kind.GRADIENT_NORM_JUMP, Severity.INFO)


def scaled(*scales: float) -> tuple[Anomaly, ...]:
    return verdict(StepValues(step, 2.0, loss_scale=scale) for step, scale in enumerate(scales)).anomalies


def test_loss_scale_collapse() -> None:
    """A scale that halves four times is a warning; below one it cannot help any more."""
    (warning,) = scaled(*[1024.0] * 100, 512, 256, 128, *[64.0] * 100)
    assert (warning.step, warning.value, warning.expected) == (100, 512.0, 1024.0)
    assert (warning.kind, warning.severity) == (Kind.LOSS_SCALE_COLLAPSE, Severity.WARNING)
    (critical,) = scaled(*[1024.0] * 100, *(1024.0 / 2**power for power in range(1, 13)))
    assert critical.severity is Severity.CRITICAL


def test_loss_scale_that_settles() -> None:
    """A scale that starts too high, and later halves once and holds, is no collapse."""
    assert scaled(*(65536.0 / 2**power for power in range(8)), *[256.0] * 100, *[128.0] * 100) == ()


def test_listed_anomalies_are_bounded() -> None:
    """Anomalies beyond the limit are counted only. A file of any size takes bounded memory."""
    excursions, apart = MAX_LISTED + 5, GAP_VALUES + 1
    norms = (math.inf if step % apart == 0 else 1.0 for step in range(excursions * apart))
    found = verdict(StepValues(step, grad_norm=norm) for step, norm in enumerate(norms))
    assert (len(found.anomalies), found.unlisted) == (MAX_LISTED, 5)


def test_several_ranks_in_one_log() -> None:
    """Several ranks in one log count once. A row that repeats the step before it is left out and counted."""
    found = verdict(StepValues(step, 2.0) for step in range(50) for _ in range(4))
    assert (found.counts.rows, found.counts.repeated, found.anomalies) == (50, 150, ())


def test_slow_return_is_a_warning() -> None:
    """The trend gets used to the raised level before the loss is back; the verdict waits for it."""
    raised = [2.0 * (1.0 + 1.5 * 0.995**step) for step in range(1500)]
    back = divergence(*steady(400), *raised)
    cut = divergence(*steady(400), *raised[:500])
    assert (back.severity, back.recovered) == (Severity.WARNING, True)
    assert (cut.severity, cut.recovered) == (Severity.CRITICAL, False)


def test_restart_that_stands_higher() -> None:
    """It diverges, within a file as after another; what earlier attempts had is no anomaly of this one."""
    higher = [loss + 2.0 for loss in steady(100)]
    (found,) = detect([*rows(steady(300)), *rows(higher, 250)], ReadCounts()).anomalies
    assert (found.kind, found.severity) == (Kind.DIVERGENCE, Severity.CRITICAL)
    assert 250 <= found.step <= 270
    earlier = [rows([*steady(300), *higher]), rows(steady(50), 250)]
    (found,) = detect(rows(higher, 300), ReadCounts(), earlier=earlier).anomalies
    assert (found.kind, found.severity) == (Kind.DIVERGENCE, Severity.CRITICAL)
    assert detect(rows(steady(100), 300), ReadCounts(), earlier=[rows(steady(300))]).anomalies == ()


def test_plateau() -> None:
    """A plateau is told where it is asked for, with the steps at which the loss had not improved for long."""
    falls = [2.0 + 2.0 * 0.998**step for step in range(1000)]
    losses = [*falls, *(falls[-1] + 0.02 * math.sin(7.0 * step) for step in range(3000))]
    asked = detect(rows(losses), ReadCounts(), plateau_steps=800)
    ((first, last),) = asked.plateaus
    assert 1800 <= first < 2400
    assert last == 3999
    assert detect(rows(losses), ReadCounts()).plateaus == ()
    assert detect(rows(falls), ReadCounts(), plateau_steps=200).plateaus == ()
