"""Norms, loss scales and changes of regime, as agent and diagnosis judge them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch.conventions.vocabulary import GRADIENT_NORM, UPDATE_NORM
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.learning.loss import RelearnReason
from rankwatch_agent.training.learning.loss_blocks import PLATEAU_IMPROVEMENT
from rankwatch_agent.training.learning.scalars import (
    HOLD_VALUES,
    LossScaleStatistics,
    NormStatistics,
    RankLearning,
)
from rankwatch_alerts import RuleConfig
from rankwatch_diagnosis.loss.anomaly import Kind
from rankwatch_diagnosis.loss.detection import detect
from rankwatch_diagnosis.loss.reading import ReadCounts, StepValues
from support.training.ranks import go_on, rank, values


def _norms(seed: int, steps: int, *, explodes_at: int = 10**9) -> Iterator[float]:
    """A norm that falls slowly, with log-normal noise; then 20 times as large, for good."""
    noise = random.Random(seed)
    for step in range(steps):
        level = 2.0 * (step + 10) ** -0.2 * (20.0 if step >= explodes_at else 1.0)
        yield level * math.exp(noise.gauss(0.0, 0.15))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("single", [1.0, 50.0], ids=["noise and a slow fall", "clipping deals with one step"])
def test_healthy_norm(seed: int, single: float) -> None:
    """Neither noise, nor a norm that is large for one step, is an explosion."""
    statistics = NormStatistics()
    for step, value in enumerate(_norms(seed, 5000)):
        statistics.add(value * single if step % 200 == 150 else value)
    assert statistics.explosions == 0
    assert 0.5 < statistics.ratio < 2.0


@pytest.mark.parametrize("seed", range(5))
def test_explosion_is_judged_alike(seed: int) -> None:
    """One that stays counts once, and the diagnosis of the same values confirms one jump."""
    norms = list(_norms(seed, 600, explodes_at=400))
    statistics = NormStatistics()
    exploded = []
    for step, value in enumerate(norms):
        before = statistics.explosions
        statistics.add(value)
        if statistics.explosions > before:
            exploded.append(step)
    rows = [StepValues(step, loss=1.0, grad_norm=value) for step, value in enumerate(norms)]
    jumps = [each for each in detect(rows, ReadCounts()).anomalies if each.confirmed_step is not None]
    assert [each.kind for each in jumps] == [Kind.GRADIENT_NORM_JUMP]
    assert exploded == [jumps[0].confirmed_step]
    assert 400 <= exploded[0] <= 410


def _scales(*parts: tuple[float, int]) -> list[float]:
    return [scale for scale, count in parts for _ in range(count)]


COLLAPSE = _scales((65536.0, 100), (32768.0, 1), (16384.0, 1), (8192.0, 1), (4096.0, 1))


@pytest.mark.parametrize(
    ("scales", "collapsed"),
    [
        (COLLAPSE, True),
        (COLLAPSE[:-1], False),
        (_scales((65536.0, 2000), (131072.0, 1), (65536.0, 60)), False),
        (_scales((65536.0, 100), (32768.0, 60), (16384.0, 60), (8192.0, 60), (4096.0, 60)), False),
        ([65536.0 / 2**k for k in range(12)], False),
        ([65536.0 / 2**k for k in range(18)], True),
        ([*COLLAPSE, *_scales((4096.0, HOLD_VALUES))], False),
        (_scales((0.5, 200)), False),
    ],
    ids=["four", "three", "growth-tried", "far-apart", "begins-too-high", "below-1", "held-again", "fixed"],
)
def test_loss_scale(scales: list[float], *, collapsed: bool) -> None:
    """Four halvings without a hold are a collapse, as is any fall below 1."""
    statistics = LossScaleStatistics()
    for each in scales:
        statistics.add(each)
    assert statistics.collapsed is collapsed
    rows = [StepValues(step, loss=1.0, loss_scale=each) for step, each in enumerate(scales)]
    kinds = [each.kind for each in detect(rows, ReadCounts()).anomalies]
    held_again = len(scales) > len(COLLAPSE) and scales[: len(COLLAPSE)] == COLLAPSE
    assert kinds == [Kind.LOSS_SCALE_COLLAPSE] * (collapsed or held_again)


@pytest.mark.parametrize(("scale", "collapsed"), [(65536.0, False), (1.0, True)])
def test_skips_at_the_smallest_scale(scale: float, collapsed: bool) -> None:
    """A scaler that may not go below 1 collapses without halving; skips at a large scale are normal."""
    statistics = LossScaleStatistics()
    for step in range(100):
        statistics.add(scale)
        if step >= 90:
            statistics.skip()
    assert (statistics.skipped, statistics.collapsed) == (10, collapsed)
    for _ in range(HOLD_VALUES):
        statistics.add(scale)
    assert not statistics.collapsed


def _resets(rates: list[float]) -> int:
    learning = RankLearning()
    for step, rate in enumerate(rates):
        learning.take("learning_rate", rate, step, 0.0)
    return learning.resets[RelearnReason.LEARNING_RATE]


def test_schedules_are_no_change() -> None:
    """Warm-up, cosine, decay to zero and small decays by epoch move the rate as planned; a step does not."""
    warm_up = [step * 1e-5 for step in range(100)]
    cosine = [5e-4 * (1 + math.cos(step * math.pi / 1000)) for step in range(1000)]
    linear = [1e-3 * (1 - step / 300) for step in range(301)]
    by_epoch = [1e-3 * 0.95 ** (step // 50) for step in range(1000)]
    for schedule in (warm_up, warm_up[1:], warm_up + cosine, linear, by_epoch):
        assert _resets(schedule) == 0
    assert _resets([1e-3] * 100 + [1e-4] * 100) == 1
    assert _resets([*warm_up, *[1e-3] * 100, *[3e-3] * 100]) == 1


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([32.0] * 100 + [64.0] * 100, 1),
        ([*[32.0] * 99, 7.0] * 3, 0),
        ([float(random.Random(step).randrange(1000, 9000)) for step in range(500)], 0),
    ],
    ids=[
        "another one that lasts is a change",
        "the small last batch of an epoch is none",
        "nor varying tokens",
    ],
)
def test_batch_size(sizes: list[float], expected: int) -> None:
    learning = RankLearning()
    for step, size in enumerate(sizes):
        for _ in range(2):  # microbatches
            learning.work("samples", size / 2, step)
    assert learning.resets[RelearnReason.BATCH_SIZE] == expected


@pytest.mark.parametrize("later", [1e-3, 1e-2])
def test_change_is_passed_to_the_loss(later: float) -> None:
    """A loss that rises by a tenth after a step of the learning rate is expected to, and else is not."""
    noise, learning = random.Random(5), RankLearning()
    for step in range(400):
        changed = step >= 300
        learning.take("learning_rate", later if changed else 1e-3, step, 0.0)
        learning.take("loss", (2.3 if changed else 2.0) + noise.gauss(0.0, 0.01), step, 0.0)
    assert learning.loss.diverging == (later == 1e-3)


def test_first_non_finite_step() -> None:
    """The step of the first one is kept until another process begins."""
    learning = RankLearning()
    for step, value in enumerate((1.0, math.inf, 2.0, math.nan)):
        learning.take(GRADIENT_NORM, value, step, 0.0)
        learning.take("loss", value if step == 3 else 1.0, step, 0.0)
    assert learning.first_nonfinite == {GRADIENT_NORM: 1, "loss": 3}
    learning.begin_process()
    assert learning.first_nonfinite == {}
    assert learning.resets[RelearnReason.RESTART] == 1


@pytest.mark.process
def test_series_of_a_real_rank(tmp_path: Path) -> None:
    """The agent reads all of it from a black box, with the step at which the norm was first infinite."""
    code = """
for step in range(200):
    with run.step():
        run.scalar("loss", float("nan") if step == 190 else 2.0)
        run.scalar("learning_rate", 1e-3 if step < 100 else 1e-4)
        run.scalar("gradient_norm", float("inf") if step == 150 else 1.0 if step < 170 else 30.0)
        run.scalar("update_norm", 0.1)
        run.scalar("loss_scale", 65536.0 / 2.0 ** max(0, min(5, step - 180)))
        run.scalar("update_skipped", float(180 < step <= 185))
        run.work(samples=8)
ready()
"""
    with rank(tmp_path, code):
        collection = RanksCollector(directory=tmp_path).collect()

    def of(name: str) -> dict[tuple[str, ...], float]:
        return {labels[2:]: value for labels, value in values(collection, name).items()}

    first = of("rankwatch_scalar_first_nonfinite_step")
    assert first[(GRADIENT_NORM,)] - first[("loss",)] == 150 - 190
    assert of("rankwatch_norm_explosions_total") == {(GRADIENT_NORM,): 1.0, (UPDATE_NORM,): 0.0}
    assert list(of("rankwatch_norm_last_explosion_timestamp_seconds")) == [(GRADIENT_NORM,)]
    assert of("rankwatch_norm_ratio")[(UPDATE_NORM,)] == pytest.approx(1.0)
    scale = ("loss_scale_halvings_total", "updates_skipped_total", "loss_scale_collapsed")
    assert [of(f"rankwatch_{name}") for name in scale] == [{(): 5.0}, {(): 5.0}, {(): 1.0}]
    resets = dict.fromkeys((("restart",), ("dataset",), ("batch_size",)), 0.0)
    assert of("rankwatch_learning_resets_total") == {**resets, ("learning_rate",): 1.0}


@pytest.mark.process
def test_real_gradient_scaler(tmp_path: Path, collector: RanksCollector) -> None:
    """A scaler of PyTorch collapses once gradients stay infinite, and learns through single overflows."""
    pytest.importorskip("torch")
    code = """
import torch
parameter = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([parameter], lr=0.0)
scaler = torch.amp.GradScaler("cpu")
for step in range(200):
    with run.step():
        loss = (parameter * (float("inf") if step in (60, 120) or step >= 150 else 1.0)).sum()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        run.scalar("loss_scale", scaler.get_scale())
        run.scalar("update_skipped", float(scaler.get_scale() < before))
    if step == 149:
        ready()
ready()
"""
    with rank(tmp_path, code) as process:
        for collapsed, skipped in ((0.0, 2.0), (1.0, 52.0)):
            collection = collector.collect()
            assert list(values(collection, "rankwatch_loss_scale_collapsed").values()) == [collapsed]
            assert list(values(collection, "rankwatch_updates_skipped_total").values()) == [skipped]
            go_on(process)


@pytest.mark.parametrize("told", [True, False])
def test_other_data(told: bool) -> None:
    """A jump where the run says that its data are others is no divergence; it is one where it does not."""
    learning, diverged = RankLearning(), False
    for step in range(600):
        if told:
            learning.take("dataset", float(step >= 300), step, 0.0)
        loss = (2.0 if step < 300 else 3.5) + 0.02 * math.sin(7.0 * step)
        learning.take("loss", loss, step, 0.0)
        diverged |= learning.loss.diverging
    assert (diverged, learning.resets[RelearnReason.DATASET]) == (not told, int(told))


def test_first_word_of_other_data() -> None:
    """A run may tell its data only where they change. What a new process tells first is the data it has."""
    learning = RankLearning()
    for step in range(100):
        learning.take("loss", 2.0, step, 0.0)
    learning.take("dataset", 2.0, 100, 0.0)
    assert learning.resets[RelearnReason.DATASET] == 1
    learning.begin_process()
    learning.take("dataset", 2.0, 100, 0.0)
    assert learning.resets[RelearnReason.DATASET] == 1


def test_evaluation_between_steps() -> None:
    """Losses of an evaluation after a step are not those of the training. One that is NaN counts."""
    learning = RankLearning()
    for step in range(300):
        learning.take("loss", 2.0 + 0.02 * math.sin(7.0 * step), step, 0.0)
        if step % 10 == 0:
            for _ in range(30):
                learning.take("loss", 6.0, step, 0.0)
        assert not learning.loss.diverging
    assert learning.loss.trend == pytest.approx(2.0, abs=0.05)
    learning.take("loss", math.nan, 299, 0.0)
    assert learning.loss.nonfinite == 1


def test_plateau() -> None:
    """A loss that stands is a plateau where somebody looks for one, whatever its spikes."""
    key, source = ("run", "0"), random.Random(4)
    learning, unasked = RankLearning(), RankLearning()
    learning.watch_plateau(400)
    for step in range(1200):
        loss = 2.0 + math.exp(-step / 50) + source.gauss(0.0, 0.002) + 9.0 * (step % 100 == 50)
        for each in (learning, unasked):
            each.take("loss", loss, step, 0.0)

    def improvement(of: RankLearning) -> list[float]:
        return [each.value for each in of.series(key) if each.metric.name == "rankwatch_loss_improvement"]

    assert improvement(learning)[0] < PLATEAU_IMPROVEMENT
    assert improvement(unasked) == []
    learning.take("dataset", 2.0, 1200, 0.0)
    assert improvement(learning) == []


def test_threshold_of_the_plateau() -> None:
    """The command judges as the board of learning does with the defaults."""
    assert RuleConfig().loss_improvement == PLATEAU_IMPROVEMENT
