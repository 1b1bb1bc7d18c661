"""Late steps, steps that vary with their work, and microbatches that differ: sums over steps."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.steps.variation import LEAST_STEPS, RunningMedian, StepParts, Variation
from support.fuzzing import BUSY_MACHINE
from support.training.ranks import rank, values


def _settled(local: float = 1.0, work: float = 0.0) -> Variation:
    """After as many equal steps as it takes to judge one."""
    variation = Variation()
    for _ in range(LEAST_STEPS):
        variation.add(StepParts(local, work))
    return variation


@BUSY_MACHINE
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=60), st.integers(1, 31))
def test_running_median(values: list[float], span: int) -> None:
    """A running median is the median of the last values. Of an even number the upper one."""
    median = RunningMedian(span)
    for each in values:
        median.add(each)
    last = sorted(values[-span:])
    assert len(median) == len(last)
    assert median.value == last[len(last) // 2]


@pytest.mark.parametrize(
    ("work", "steps", "late", "terms"),
    [
        (0.0, [(3.0, 0.0), (2.0, 0.0)], (2, 3.0), None),
        (0.0, [(1.5, 0.0), (1.0, 0.0)], (1, 0.5), None),
        (0.0, [(1.2, 0.0), (0.8, 0.0), (1.24, 0.0)], (0, 0.0), None),
        (0.0, [(0.0, 0.0), (0.0, 0.0), (1.0, 0.0)], (0, 0.0), {"local": 0.0}),
        (0.0, [(1.2, 0.0)], (0, 0.0), {"local": 0.04}),
        (100.0, [(3.0, 300.0)], (0, 0.0), None),
        (100.0, [(3.0, 300.0), (1.5, 50.0)], (1, 0.5), None),
        (100.0, [(1.2, 120.0), (0.8, 80.0)], (0, 0.0), {"local": 0.08, "work": 0.08, "local_and_work": 0.32}),
        (100.0, [(1000.0, 100.0)], (1, 999.0), {"local": 1.0, "work": 0.0, "local_and_work": 1.0}),
    ],
    ids=[
        "of two late ones in a row both count",
        "a step half again as long is late by the other half, and the next ordinary one is not",
        "noise of a few percent is far below, and so is a fifth",
        "steps whose own time is not known, as of a CUDA graph with collectives, show no variation",
        "unknown work is no series, not a zero",
        "three times the tokens may take three times as long",
        "half of the tokens excuse nothing",
        "time that follows work covaries with it: each term 0.08, the covariance as much",
        "a pause of minutes counts no more than a step of twice the time: it would hide all others",
    ],
)
def test_steps(
    work: float, steps: list[tuple[float, float]], late: tuple[int, float], terms: dict[str, float] | None
) -> None:
    """Late steps with their excess over the median, and how time and work vary, after equal steps of 1 s."""
    variation = _settled(work=work)
    for each in steps:
        variation.add(StepParts(*each))
    assert (variation.late_steps, variation.late_seconds) == pytest.approx(late)
    if terms is not None:
        assert variation.terms == pytest.approx(terms)


def test_first_steps() -> None:
    """The first steps are not judged. They compile and fill caches: nothing is known to compare them with."""
    variation = Variation()
    for local in (30.0, 9.0, *[1.0] * LEAST_STEPS):
        variation.add(StepParts(local))
    assert variation.late_steps == 0


def test_change_of_level() -> None:
    """It is normal after half a span: a rank that is slow for good is no straggler again and again."""
    variation = _settled()
    for _ in range(200):
        variation.add(StepParts(2.0))
    assert variation.late_steps <= 16


def test_unequal_microbatches() -> None:
    """One is 20 % longer than the mean and one shorter, in both: a variance of 0.08, and the covariance."""
    variation = Variation()
    variation.add(StepParts(3.0, forward_seconds=[1.2, 0.8], backward_seconds=[2.4, 1.6]))
    assert variation.microbatches == 2
    assert variation.terms == pytest.approx({"forward": 0.08, "backward": 0.08, "forward_and_backward": 0.32})


def test_independent_noise() -> None:
    """Each phase varies by 10 % on its own: the covariance is small against either variance."""
    noise = random.Random(3)
    variation = Variation()
    for _ in range(500):
        parts = [[noise.gauss(1.0, 0.1) for _ in range(4)] for _ in range(2)]
        variation.add(StepParts(8.0, forward_seconds=parts[0], backward_seconds=parts[1]))
    forward, backward, both = (variation.terms[e] for e in ("forward", "backward", "forward_and_backward"))
    assert forward / 500 == pytest.approx(0.01, rel=0.1)
    assert abs(both - forward - backward) / 2 < 0.1 * forward


@pytest.mark.parametrize(("forward", "backward"), [([1.0], [2.0]), ([1.0, 2.0], [3.0]), ([], [])])
def test_unmatched_microbatches(forward: list[float], backward: list[float]) -> None:
    """One has no peer; where the counts differ, order does not say which belongs to which."""
    variation = Variation()
    variation.add(StepParts(1.0, forward_seconds=forward, backward_seconds=backward))
    assert (variation.microbatches, variation.terms) == (0, {})


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
def test_sums_only_grow(steps: list[StepParts]) -> None:
    """No step makes a sum shrink or be no number. Durations and amounts come from an untrusted file."""
    variation = Variation()
    before = [0.0]
    for step in steps:
        variation.add(step)
        sums = [variation.late_seconds, *variation.terms.values()]
        assert all(math.isfinite(each) for each in sums)
        assert sum(sums) >= sum(before)
        before = sums


_OWN_TIME = """
import rankwatch.run
moment = time.monotonic()
def sleep(seconds):
    global moment
    moment += seconds
time.sleep, time.monotonic = sleep, lambda: moment
rankwatch.run.Run.__init__.__kwdefaults__["clock"] = time.monotonic
"""
"""The rank's time passes only while it sleeps: a busy machine would make its microbatches unequal too."""

_UNEQUAL = """
for number in range(12):
    with run.step():
        for factor in (1, 3):
            with run.phase("forward"): time.sleep(0.004 * factor)
            with run.phase("backward"): time.sleep(0.008 * factor)
        if number == 10:
            with run.phase("data_wait"): time.sleep(0.5)
        run.work(tokens=64)
with run.evaluation(): ready()
"""


def _series(tmp_path: Path, code: str) -> Collection:
    """What the agent exports once the last step is settled, some half a second after its end."""
    with rank(tmp_path, code, before=_OWN_TIME):
        collector = RanksCollector(directory=tmp_path, monotonic=lambda: time.monotonic() + 60.0)
        return collector.collect()


@pytest.mark.process
def test_variation_series(tmp_path: Path) -> None:
    """One forward and backward are three times as long: a variance of 0.5, all of it shared."""
    found = _series(tmp_path, _UNEQUAL)
    steps = values(found, "rankwatch_steps_total")["job", "0"]
    assert values(found, "rankwatch_late_steps_total")["job", "0"] == 1
    assert values(found, "rankwatch_late_step_seconds_total")["job", "0"] == pytest.approx(0.5)
    totals = values(found, "rankwatch_step_variation_total")
    terms = {labels[2]: value / steps for labels, value in totals.items()}
    shared = (terms["forward_and_backward"] - terms["forward"] - terms["backward"]) / 2
    assert (terms["forward"], terms["backward"], shared) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.process
def test_variation_series_without_terms(tmp_path: Path) -> None:
    """A rank with one microbatch and no work has no terms. What cannot be told has no series."""
    found = _series(tmp_path, "for _ in range(12):\n    with run.step(): pass\nready()")
    assert values(found, "rankwatch_step_variation_total") == {}
