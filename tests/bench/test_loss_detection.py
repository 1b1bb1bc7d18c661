"""The bench of loss detectors: scores are fair, and each rule of others does what its source says."""

from __future__ import annotations

import math

import pytest

from rankwatch_agent.training.learning.loss import RelearnReason
from support.diagnosis.loss_curves import Curve, Truth, curves

from .loss_detection import AGENT, COMMAND, DETECTORS, Score, alarms_of, judge
from .loss_peers import PEERS, KillLossSpike, RerunMachine, StabilityMonitor, ZClip, ZScore


def noisy(count: int, level: float = 2.0) -> list[float]:
    return [level + 0.02 * math.sin(7.0 * step) for step in range(count)]


def curve_of(losses: list[float], **given: object) -> Curve:
    return Curve("any", tuple(range(len(losses))), tuple(losses), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "after", "alarm_at"),
    [
        (StabilityMonitor, [4.0], 200),  # each spike, from the 129th value on
        (KillLossSpike, [5.0] * 6, 204),  # the fifth in a row
        (RerunMachine, [19.0, 25.0], 201),  # ten times the largest of the first hundred
        (RerunMachine, [math.nan], 200),
        (ZClip, [2.2], 200),
        (ZScore, [2.2], 200),
    ],
)
def test_rules_of_others(make: type, after: list[float], alarm_at: int) -> None:
    """Each rule alarms where its source says, and not before."""
    assert next(alarms_of(make)(curve_of(noisy(200) + after))) == alarm_at


def test_high_losses() -> None:
    """Half a window above the cap stops a run, too, though nothing spiked."""
    first = next(alarms_of(KillLossSpike)(curve_of(noisy(150, 9.0) + noisy(200, 11.0))))
    assert 200 <= first <= 202


def test_peers_begin_anew() -> None:
    """At a restart a peer begins anew, as its process does."""
    losses = noisy(200) + noisy(200, 40.0)
    marked = curve_of(losses, marks={200: RelearnReason.RESTART})
    for make in PEERS.values():
        assert next(alarms_of(make)(marked), 400) >= 200 + 20
    assert 200 in alarms_of(RerunMachine)(curve_of(losses))


def test_scores() -> None:
    """Alarms close to each other count once, one on a natural spike only for those that judge divergence."""
    healthy, diverging = Score(), Score()
    losses = noisy(1000)
    healthy.add(curve_of(losses), [100, 101, 110, 300], spikes_count=True)
    healthy.add(curve_of(losses, spikes=(range(100, 120),)), [100, 105], spikes_count=False)
    healthy.add(curve_of(losses, spikes=(range(100, 120),)), [100, 105], spikes_count=True)
    assert (healthy.false, healthy.disturbed, healthy.healthy, healthy.healthy_steps) == (3, 2, 3, 3000)
    for alarms in ([10, 700, 701], [520], []):
        diverging.add(curve_of(losses, onset=600, turn=500), alarms, spikes_count=True)
    assert (diverging.false, diverging.delays, diverging.diverging) == (1, [100, 0], 3)


def test_judge() -> None:
    """All detectors see all curves, ours among them finds a step within twenty values."""
    given = [("step up", curve) for curve in curves("step up", 2, seed=5, steps=1000)]
    scores = judge(given)
    assert set(scores) == set(DETECTORS)
    for ours in (AGENT, COMMAND):
        assert max(scores[ours]["step up"].delays) < 20


def test_trained_model() -> None:
    """A real divergence has its onset at its mistake or after, the same for the same seed."""
    pytest.importorskip("torch")
    from .loss_runs import FAULT_STEP, faulty_run, one_thread

    with one_thread():
        first, again = (faulty_run("MLP", "SGD", "rate x 100", seed=1) for _ in range(2))
    assert first is not None
    assert again is not None
    assert first.onset is not None
    assert FAULT_STEP <= first.onset < FAULT_STEP + 20
    assert repr(first.losses) == repr(again.losses)
    assert first.marks == {FAULT_STEP: RelearnReason.LEARNING_RATE}


def test_oracle() -> None:
    """Who knows all is sure later where the noise carries over, and where a part of the rise is healthy."""
    from .loss_oracle import needed

    def delay(memory: float = 0.0, allowed_rise: float = 0.0) -> int | None:
        truth = Truth(rises=(0.1,) * 500, sigma=0.1, memories=((1.0, memory),))
        curve = curve_of(noisy(600), onset=100, turn=100, truth=truth)
        return needed(curve, 1_000_000, allowed_rise=allowed_rise)

    alone = math.ceil(2.0 * math.log(1_000_000)) - 1  # half the square of one sigma a step
    assert delay() == alone
    assert (delay(memory=0.7) or 0) > 3 * alone
    assert (delay(allowed_rise=0.05) or 0) > 3 * alone
    assert delay(allowed_rise=0.2) is None
