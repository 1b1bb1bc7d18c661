"""Means over recent steps: exact sums of the window, in bounded memory, over restarts of the rank."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rankwatch.conventions.states import SlowPhase
from rankwatch_agent.training.recent import (
    RecentMeans,
    RecentSteps,
    node_series,
    rank_series,
    step_series,
    token_series,
)
from rankwatch_agent.training.steps import StepAssembler
from rankwatch_agent.training.timeouts import LearntTimeouts

WINDOW = 60.0


def _assembler() -> StepAssembler:
    return StepAssembler(LearntTimeouts(), lambda seconds: None)


def _steps(steps: StepAssembler, count: int, *, seconds: float = 1.0, local: float = 0.5) -> None:
    """Totals go on as by so many steps."""
    steps.steps += count
    steps.seconds += count * seconds
    steps.local_seconds += count * local
    steps.local_steps += count
    steps.known_seconds += count * seconds
    steps.arrival_seconds += count * (local + 0.1)
    steps.compute_seconds += count * (local - 0.1)
    for phase, share in (("forward", 0.4), ("data_wait", 0.1), ("communication", 0.5)):
        steps.phase_seconds[phase] = steps.phase_seconds.get(phase, 0.0) + count * seconds * share


def _read(window: RecentSteps) -> RecentMeans:
    assert window.means is not None
    return window.means


def test_means() -> None:
    """What came before the first look is not counted, nor what is older than the window."""
    steps, recent = _assembler(), RecentSteps(WINDOW)
    _steps(steps, 1000, seconds=90.0)
    recent.take(steps, 0.0)
    assert recent.means is None
    for second in range(1, 601):
        _steps(steps, 2, local=0.25 if second <= 300 else 0.75)
        recent.take(steps, float(second))
    means = _read(recent)
    assert means.step_seconds == pytest.approx(1.0)
    assert means.local_seconds == pytest.approx(0.75)
    assert means.arrival_seconds == pytest.approx(0.85)
    assert means.compute_seconds == pytest.approx(0.65)
    assert means.data_wait_ratio == pytest.approx(0.1)
    assert means.waiting_ratio == pytest.approx(0.25)
    assert means.phase_seconds[SlowPhase.COMPUTE] == pytest.approx(0.4)
    assert means.phase_seconds[SlowPhase.CHECKPOINT] == 0.0


def test_unknown_local_time() -> None:
    """Steps whose waits are not known take no part in the mean of local time, and no part of it is 0."""
    steps, recent = _assembler(), RecentSteps(WINDOW)
    recent.take(steps, 0.0)
    _steps(steps, 4)
    steps.steps += 6
    steps.seconds += 6 * 2.0
    recent.take(steps, 10.0)
    assert _read(recent).local_seconds == pytest.approx(0.5)
    assert _read(recent).arrival_seconds >= 0.5
    assert recent.step_seconds == pytest.approx(1.6)
    steps.local_known = False
    recent.take(steps, 20.0)
    assert recent.means is None
    (series,) = step_series("r", [recent.step_seconds, None])
    assert series.value == pytest.approx(1.6), "the step of the run is known all the same"
    assert list(step_series("r", [None])) == []


def test_some_unknown_steps() -> None:
    """In a mixed run what follows from local time is neither too low nor too high: of known steps."""
    steps, recent = _assembler(), RecentSteps(WINDOW)
    for number in range(51):
        if number == 20:
            recent.take(steps, 20.0)
        known = number % 2 == 0
        steps.device.phase("data_wait", 0.05, number)
        if known:
            steps.device.message(0.1, number)
        steps.step(float(number), number + 0.5, number, on_device=True)
        late = number % 10 == 4
        steps.device_step(number, (1.0 + late) if known else 4.0, 0.3 if known else 0.0, known=known)
    steps.settle(52.0, 52.0)
    recent.take(steps, 52.0)
    means = _read(recent)
    share = 3 / 16
    assert means.local_seconds == pytest.approx(0.7 + share)
    assert means.arrival_seconds == pytest.approx(0.8 + share)
    assert means.compute_seconds == pytest.approx(0.65 + share)
    assert means.waiting_ratio == pytest.approx(0.3 / (1.0 + share))
    assert means.late_steps_ratio == pytest.approx(share)
    assert means.late_seconds == means.late_long_seconds == pytest.approx(share)


def test_change_shows_after_a_window() -> None:
    """Half a window after a change half of the steps are new ones."""
    steps, recent = _assembler(), RecentSteps(WINDOW)
    for second in range(601):
        recent.take(steps, float(second))
        _steps(steps, 1, local=0.2 if second < 570 else 0.4)
    assert _read(recent).local_seconds == pytest.approx(0.3, rel=0.05)


def test_rank_without_steps() -> None:
    """A window after its last step a rank has no means; they come back with the first step."""
    steps, recent = _assembler(), RecentSteps(WINDOW)
    recent.take(steps, 0.0)
    _steps(steps, 1)
    recent.take(steps, 1.0)
    assert recent.means is not None
    for second in range(2, 200):
        recent.take(steps, float(second))
    assert recent.means is None
    _steps(steps, 1, local=0.125)
    recent.take(steps, 200.0)
    assert _read(recent).local_seconds == 0.125


def test_agent_that_slept() -> None:
    """After a look that comes late by many windows only what is new counts."""
    steps, recent = _assembler(), RecentSteps(WINDOW)
    recent.take(steps, 0.0)
    _steps(steps, 5)
    recent.take(steps, 50 * WINDOW)
    assert recent.means is None
    _steps(steps, 1, local=0.25)
    recent.take(steps, 50 * WINDOW + 1)
    assert _read(recent).local_seconds == 0.25


def test_bounded_memory() -> None:
    """A look each millisecond keeps no more than one each second would."""
    steps, recent = _assembler(), RecentSteps(WINDOW)
    for look in range(200_000):
        recent.take(steps, look / 1000)
    assert len(recent._looks) <= 32 and len(recent._long) <= 63


def test_late_steps() -> None:
    """The longer mean is over twice the window."""
    steps, recent = _assembler(), RecentSteps(WINDOW)
    for second in range(121):
        recent.take(steps, float(second))
        _steps(steps, 1)
        if second == 30:
            steps.variation.late_steps += 1
            steps.variation.late_seconds += 6.0
    means = _read(recent)
    assert means.late_steps_ratio == 0.0 and means.late_seconds == 0.0
    assert means.late_long_seconds == pytest.approx(6.0 / 120, rel=0.05)


def test_what_explains_the_variation() -> None:
    """Tokens that explain all of it: correlation 1, and sigma the spread of the time."""
    steps, recent = _assembler(), RecentSteps(WINDOW)
    recent.take(steps, 0.0)
    for deviation in (0.2, -0.2) * 10:
        _steps(steps, 1)
        terms = steps.variation.terms
        for name, value in (("local", deviation), ("work", deviation), ("local_and_work", 2 * deviation)):
            terms[name] = terms.get(name, 0.0) + value**2
    recent.take(steps, 20.0)
    means = _read(recent)
    assert means.variance == pytest.approx(0.04)
    assert set(means.together) == {"work"}
    found = means.together["work"]
    assert found.covariance == pytest.approx(0.04)
    assert found.correlation == pytest.approx(1.0)
    assert found.sigma == pytest.approx(0.2)


def test_microbatches_add_up() -> None:
    """The spread of a step of four microbatches is half of theirs."""
    steps, recent = _assembler(), RecentSteps(WINDOW)
    recent.take(steps, 0.0)
    _steps(steps, 10)
    steps.variation.microbatches += 40
    steps.variation.terms.update({"forward": 0.4, "backward": 0.4, "forward_and_backward": 1.6})
    recent.take(steps, 10.0)
    found = _read(recent).together["microbatches"]
    assert found.correlation == pytest.approx(1.0)
    assert found.sigma == pytest.approx(math.sqrt(0.04 / 4))


def test_series() -> None:
    """Of a rank without tokens nothing per token; of a node the medians of its ranks, by stage."""
    steps, ranks = _assembler(), {}
    for rank, local in enumerate((0.2, 0.3, 0.9)):
        recent = RecentSteps(WINDOW)
        recent.take(steps, 0.0)
        _steps(steps, 1, local=local)
        recent.take(steps, 1.0)
        ranks["r", str(rank), str(rank // 2)] = _read(recent)
    key = ("r", "2", "1")
    of_rank = (*rank_series(key, "outstanding", "4", ranks[key]), *token_series(key, "", ranks[key]))
    found = {each.metric.name: (each.labels, each.value) for each in of_rank}
    assert found["rankwatch_recent_step_local_seconds"] == ((*key, "outstanding", "4"), pytest.approx(0.9))
    assert not any("token" in name for name in found)
    of_node = {(each.metric.name, each.labels): each.value for each in node_series("r", ranks)}
    assert of_node["rankwatch_recent_run_waiting_ratio", ("r",)] == pytest.approx(0.7)
    assert of_node["rankwatch_recent_stage_phase_seconds", ("r", "1", "compute")] == pytest.approx(0.4)
    assert of_node["rankwatch_recent_stage_compute_seconds", ("r", "0")] == pytest.approx(0.15)
    assert of_node["rankwatch_recent_stage_least_compute_seconds", ("r", "0")] == pytest.approx(0.1)
    assert of_node["rankwatch_recent_stage_ranks", ("r", "0")] == 2
    assert of_node["rankwatch_recent_stage_token_ranks", ("r", "0")] == 0
    assert not any("covariance" in name or "most_tokens" in name for name, _ in of_node)
    assert list(node_series("r", {})) == []


def _means(**changed: float) -> RecentMeans:
    steps, recent = _assembler(), RecentSteps(WINDOW)
    recent.take(steps, 0.0)
    _steps(steps, 1)
    recent.take(steps, 1.0)
    return replace(_read(recent), **changed)


def test_series_of_tokens() -> None:
    """How many ranks report them, and the own time of the rank that has most."""
    ranks = {
        ("r", str(rank), ""): _means(tokens=tokens, local_seconds=0.5 + rank / 10)
        for rank, tokens in enumerate((0.0, 10.0, 40.0, 20.0))
    }
    of_node = {each.metric.name.partition("stage_")[2]: each.value for each in node_series("r", ranks)}
    assert (of_node["ranks"], of_node["token_ranks"]) == (4, 3)
    assert (of_node["most_tokens"], of_node["most_tokens_local_seconds"]) == (40.0, pytest.approx(0.7))


def test_series_of_late_steps() -> None:
    """Sums of the node, and what the two ranks hold that are most late over twice the window."""
    late = ((0.1, 0.1), (0.0, 0.4), (0.3, 0.2), (0.0, 0.0))
    ranks = {
        ("r", str(rank), ""): _means(late_seconds=recent, late_long_seconds=long)
        for rank, (recent, long) in enumerate(late)
    }
    of_node = {each.metric.name.partition("run_")[2]: each.value for each in node_series("r", ranks)}
    assert (of_node["late_step_seconds"], of_node["late_ranks"]) == (pytest.approx(0.4), 3)
    assert of_node["late_step_long_seconds"] == pytest.approx(0.7)
    assert (of_node["most_late_step_seconds"], of_node["most_late_step_long_seconds"]) == (0.0, 0.4)
    assert of_node["second_late_step_long_seconds"] == 0.2
