"""Means over recent steps: exact sums of the window, in bounded memory, over restarts of the rank."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rankwatch.conventions.states import SlowPhase
from rankwatch_agent.training.steps.assembly import StepAssembler
from rankwatch_agent.training.steps.recent import (
    RecentMeans,
    RecentSteps,
    node_series,
    rank_series,
    step_series,
    token_series,
)
from rankwatch_agent.training.steps.timeouts import LearntTimeouts

WINDOW = 60.0


class Rank:
    """The recent steps of a rank, looked at for the first time at 0 s."""

    def __init__(self, first_look: float | None = 0.0) -> None:
        self.steps = StepAssembler(LearntTimeouts(), lambda seconds: None)
        self.recent = RecentSteps(WINDOW)
        if first_look is not None:
            self.look(first_look)

    def go_on(self, count: int, *, seconds: float = 1.0, local: float = 0.5) -> None:
        """Totals go on as by so many steps."""
        steps = self.steps
        steps.steps += count
        steps.seconds += count * seconds
        steps.local_seconds += count * local
        steps.local_steps += count
        steps.known_seconds += count * seconds
        steps.arrival_seconds += count * (local + 0.1)
        steps.compute_seconds += count * (local - 0.1)
        for phase, share in (("forward", 0.4), ("data_wait", 0.1), ("communication", 0.5)):
            steps.phase_seconds[phase] = steps.phase_seconds.get(phase, 0.0) + count * seconds * share

    def look(self, moment: float) -> None:
        self.recent.take(self.steps, moment)

    @property
    def means(self) -> RecentMeans:
        assert self.recent.means is not None
        return self.recent.means


def test_means() -> None:
    """What came before the first look is not counted, nor what is older than the window."""
    rank = Rank(first_look=None)
    rank.go_on(1000, seconds=90.0)
    rank.look(0.0)
    assert rank.recent.means is None
    for second in range(1, 601):
        rank.go_on(2, local=0.25 if second <= 300 else 0.75)
        rank.look(float(second))
    means = rank.means
    found = (means.step_seconds, means.local_seconds, means.arrival_seconds, means.compute_seconds)
    assert found == pytest.approx((1.0, 0.75, 0.85, 0.65))
    assert (means.data_wait_ratio, means.waiting_ratio) == pytest.approx((0.1, 0.25))
    assert means.phase_seconds[SlowPhase.COMPUTE] == pytest.approx(0.4)
    assert means.phase_seconds[SlowPhase.CHECKPOINT] == 0.0


def test_unknown_local_time() -> None:
    """Steps whose waits are not known take no part in the mean of local time, and no part of it is 0."""
    rank = Rank()
    rank.go_on(4)
    rank.steps.steps += 6
    rank.steps.seconds += 6 * 2.0
    rank.look(10.0)
    assert rank.means.local_seconds == pytest.approx(0.5)
    assert rank.means.arrival_seconds >= 0.5
    assert rank.recent.step_seconds == pytest.approx(1.6)
    rank.steps.local_known = False
    rank.look(20.0)
    assert rank.recent.means is None
    (series,) = step_series("r", [rank.recent.step_seconds, None])
    assert series.value == pytest.approx(1.6), "the step of the run is known all the same"
    assert list(step_series("r", [None])) == []


def test_some_unknown_steps() -> None:
    """In a mixed run what follows from local time is neither too low nor too high: of known steps."""
    rank = Rank(first_look=None)
    for number in range(51):
        if number == 20:
            rank.look(20.0)
        known = number % 2 == 0
        rank.steps.device.phase("data_wait", 0.05, number)
        if known:
            rank.steps.device.message(0.1, number)
        rank.steps.step(float(number), number + 0.5, number, on_device=True)
        late = number % 10 == 4
        seconds, waited = ((1.0 + late), 0.3) if known else (4.0, 0.0)
        rank.steps.device_step(number, seconds, waited, known=known)
    rank.steps.settle(52.0, 52.0)
    rank.look(52.0)
    means, share = rank.means, 3 / 16
    found = (means.local_seconds, means.arrival_seconds, means.compute_seconds)
    assert found == pytest.approx((0.7 + share, 0.8 + share, 0.65 + share))
    assert means.waiting_ratio == pytest.approx(0.3 / (1.0 + share))
    assert (means.late_steps_ratio, means.late_seconds) == pytest.approx((share, share))
    assert means.late_long_seconds == means.late_seconds


def test_change_shows_after_a_window() -> None:
    """Half a window after a change half of the steps are new ones."""
    rank = Rank(first_look=None)
    for second in range(601):
        rank.look(float(second))
        rank.go_on(1, local=0.2 if second < 570 else 0.4)
    assert rank.means.local_seconds == pytest.approx(0.3, rel=0.05)


def test_rank_without_steps() -> None:
    """A window after its last step a rank has no means; they come back with the first step."""
    rank = Rank()
    rank.go_on(1)
    rank.look(1.0)
    assert rank.recent.means is not None
    for second in range(2, 200):
        rank.look(float(second))
    assert rank.recent.means is None
    rank.go_on(1, local=0.125)
    rank.look(200.0)
    assert rank.means.local_seconds == 0.125


def test_agent_that_slept() -> None:
    """After a look that comes late by many windows only what is new counts."""
    rank = Rank()
    rank.go_on(5)
    rank.look(50 * WINDOW)
    assert rank.recent.means is None
    rank.go_on(1, local=0.25)
    rank.look(50 * WINDOW + 1)
    assert rank.means.local_seconds == 0.25


def test_bounded_memory() -> None:
    """A look each millisecond keeps no more than one each second would."""
    rank = Rank(first_look=None)
    for look in range(200_000):
        rank.look(look / 1000)
    assert len(rank.recent._looks) <= 32 and len(rank.recent._long) <= 63


def test_late_steps() -> None:
    """The longer mean is over twice the window."""
    rank = Rank(first_look=None)
    for second in range(121):
        rank.look(float(second))
        rank.go_on(1)
        if second == 30:
            rank.steps.variation.late_steps += 1
            rank.steps.variation.late_seconds += 6.0
    assert (rank.means.late_steps_ratio, rank.means.late_seconds) == (0.0, 0.0)
    assert rank.means.late_long_seconds == pytest.approx(6.0 / 120, rel=0.05)


def test_what_explains_the_variation() -> None:
    """Tokens that explain all of it: correlation 1, and sigma the spread of the time."""
    rank = Rank()
    for deviation in (0.2, -0.2) * 10:
        rank.go_on(1)
        terms = rank.steps.variation.terms
        for name, value in (("local", deviation), ("work", deviation), ("local_and_work", 2 * deviation)):
            terms[name] = terms.get(name, 0.0) + value**2
    rank.look(20.0)
    assert rank.means.variance == pytest.approx(0.04)
    assert set(rank.means.together) == {"work"}
    found = rank.means.together["work"]
    assert (found.covariance, found.correlation, found.sigma) == pytest.approx((0.04, 1.0, 0.2))


def test_microbatches_add_up() -> None:
    """The spread of a step of four microbatches is half of theirs."""
    rank = Rank()
    rank.go_on(10)
    rank.steps.variation.microbatches += 40
    rank.steps.variation.terms.update({"forward": 0.4, "backward": 0.4, "forward_and_backward": 1.6})
    rank.look(10.0)
    found = rank.means.together["microbatches"]
    assert (found.correlation, found.sigma) == pytest.approx((1.0, math.sqrt(0.04 / 4)))


def test_series() -> None:
    """Of a rank without tokens nothing per token; of a node the medians of its ranks, by stage."""
    ranks = {
        ("r", f"{number}", f"{number // 2}"): _means(local) for number, local in enumerate((0.2, 0.3, 0.9))
    }
    key = ("r", "2", "1")
    of_rank = (*rank_series(key, "outstanding", "4", ranks[key]), *token_series(key, "", ranks[key]))
    found = {each.metric.name: (each.labels, each.value) for each in of_rank}
    assert found["rankwatch_recent_step_local_seconds"] == ((*key, "outstanding", "4"), pytest.approx(0.9))
    assert not any("token" in name for name in found)
    of_node = {
        (each.metric.name.removeprefix("rankwatch_recent_"), *each.labels): each.value
        for each in node_series("r", ranks)
    }
    expected = {
        ("run_waiting_ratio", "r"): 0.7,
        ("stage_phase_seconds", "r", "1", "compute"): 0.4,
        ("stage_compute_seconds", "r", "0"): 0.15,
        ("stage_least_compute_seconds", "r", "0"): 0.1,
        ("stage_ranks", "r", "0"): 2,
        ("stage_token_ranks", "r", "0"): 0,
    }
    assert {each: of_node[each] for each in expected} == pytest.approx(expected)
    assert not any("covariance" in name or "most_tokens" in name for name, *_ in of_node)
    assert list(node_series("r", {})) == []


def _means(local: float = 0.5, **changed: float) -> RecentMeans:
    """Those of a rank that made one step."""
    rank = Rank()
    rank.go_on(1, local=local)
    rank.look(1.0)
    return replace(rank.means, **changed)


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
