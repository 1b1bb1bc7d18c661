"""Late steps, steps that vary with their work, and microbatches that differ: sums over steps."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch_agent.training.variation import LEAST_STEPS, RunningMedian, StepParts, Variation
from support.fuzzing import BUSY_MACHINE


def _settled(local: float = 1.0, work: float = 0.0) -> Variation:
    """After as many equal steps as it takes to judge one."""
    variation = Variation()
    for _ in range(LEAST_STEPS):
        variation.add(StepParts(local, work))
    return variation


def _covariance(variation: Variation, one: str, other: str) -> float:
    terms = variation.terms
    return (terms[f"{one}_and_{other}"] - terms[one] - terms[other]) / 2


@BUSY_MACHINE
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=60), st.integers(1, 31))
def test_a_running_median_is_the_median_of_the_last_values(values: list[float], span: int) -> None:
    """Of an even number the upper one."""
    median = RunningMedian(span)
    for each in values:
        median.add(each)
    last = sorted(values[-span:])
    assert len(median) == len(last)
    assert median.value == last[len(last) // 2]


def test_a_step_half_again_as_long_is_late_by_the_other_half() -> None:
    """Its excess over the median is counted; the next ordinary one is not late."""
    variation = _settled(2.0)
    variation.add(StepParts(3.0))
    variation.add(StepParts(2.0))
    assert (variation.late_steps, variation.late_seconds) == (1, 1.0)


def test_steps_that_differ_by_a_fifth_are_not_late() -> None:
    """Noise of a few percent is far below."""
    variation = _settled()
    for local in (1.2, 0.8, 1.24):
        variation.add(StepParts(local))
    assert (variation.late_steps, variation.late_seconds) == (0, 0.0)


def test_the_first_steps_are_not_judged() -> None:
    """They compile and fill caches: nothing is known to compare them with."""
    variation = Variation()
    for local in (30.0, 9.0, *[1.0] * LEAST_STEPS):
        variation.add(StepParts(local))
    assert variation.late_steps == 0


def test_a_change_of_level_is_normal_after_half_a_span() -> None:
    """A rank that has become slow for good is a straggler, not late again and again."""
    variation = _settled()
    for _ in range(200):
        variation.add(StepParts(2.0))
    assert variation.late_steps <= 16


def test_a_step_with_more_work_is_not_late() -> None:
    """Three times the tokens may take three times as long; half of them excuse nothing."""
    variation = _settled(work=100.0)
    variation.add(StepParts(3.0, 300.0))
    assert variation.late_steps == 0
    variation.add(StepParts(1.5, 50.0))
    assert (variation.late_steps, variation.late_seconds) == (1, 0.5)


def test_time_that_follows_work_covaries_with_it() -> None:
    """Deviations of +20 % and -20 % in both: each term 0.08, the covariance as much."""
    variation = _settled(work=100.0)
    variation.add(StepParts(1.2, 120.0))
    variation.add(StepParts(0.8, 80.0))
    assert variation.terms == pytest.approx({"local": 0.08, "work": 0.08, "local_and_work": 0.32})
    assert _covariance(variation, "local", "work") == pytest.approx(0.08)


def test_without_tokens_nothing_is_said_of_work() -> None:
    """Unknown is no series, not a zero."""
    variation = _settled()
    variation.add(StepParts(1.2))
    assert variation.terms == {}


def test_unequal_microbatches_covary_in_forward_and_backward() -> None:
    """One is 20 % longer than the mean and one 20 % shorter, in both: a variance of 0.08."""
    variation = Variation()
    variation.add(StepParts(3.0, forward_seconds=[1.2, 0.8], backward_seconds=[2.4, 1.6]))
    assert variation.microbatches == 2
    assert variation.terms == pytest.approx({"forward": 0.08, "backward": 0.08, "forward_and_backward": 0.32})
    assert _covariance(variation, "forward", "backward") == pytest.approx(0.08)


def test_noise_of_forward_and_backward_does_not_covary() -> None:
    """Each phase varies by 10 % on its own: the covariance is small against either variance."""
    noise = random.Random(3)
    variation = Variation()
    for _ in range(500):
        parts = [[noise.gauss(1.0, 0.1) for _ in range(4)] for _ in range(2)]
        variation.add(StepParts(8.0, forward_seconds=parts[0], backward_seconds=parts[1]))
    assert variation.terms["forward"] / 500 == pytest.approx(0.01, rel=0.1)
    assert abs(_covariance(variation, "forward", "backward")) < 0.1 * variation.terms["forward"]


@pytest.mark.parametrize(("forward", "backward"), [([1.0], [2.0]), ([1.0, 2.0], [3.0]), ([], [])])
def test_steps_without_matching_microbatches_tell_nothing_of_them(
    forward: list[float], backward: list[float]
) -> None:
    """One microbatch has no peer; where the counts differ, order does not say which belongs to which."""
    variation = Variation()
    variation.add(StepParts(1.0, forward_seconds=forward, backward_seconds=backward))
    assert (variation.microbatches, variation.terms) == (0, {})


def test_one_freak_step_counts_no_more_than_one_of_twice_the_time() -> None:
    """A pause of minutes would hide all other steps of a window."""
    variation = _settled(work=100.0)
    variation.add(StepParts(1000.0, 100.0))
    assert variation.terms["local"] == 1.0


@BUSY_MACHINE
@given(
    st.lists(
        st.builds(
            StepParts,
            st.floats(0.0, 1e300),
            st.floats(0.0, 1e300),
            st.lists(st.floats(0.0, 1e300), max_size=3),
            st.lists(st.floats(0.0, 1e300), max_size=3),
        ),
        max_size=40,
    )
)
def test_no_step_makes_a_sum_shrink_or_be_no_number(steps: list[StepParts]) -> None:
    """Durations and amounts come from an untrusted file."""
    variation = Variation()
    before = [0.0]
    for step in steps:
        variation.add(step)
        sums = [variation.late_seconds, *variation.terms.values()]
        assert all(math.isfinite(each) for each in sums)
        assert sum(sums) >= sum(before)
        before = sums
