"""The parts of a step sum to the step, and the time blocked in collectives is told from the rank's own."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch_agent.training.steps.split import (
    MESSAGE,
    Collective,
    blocked_times,
    message_seconds,
    split_step,
)
from support.fuzzing import BUSY_MACHINE
from support.processes.lines import lines_run


def test_unclaimed_time() -> None:
    """Time that no phase claims is `other`: of four seconds one is nobody's."""
    parts, _ = split_step(10.0, 14.0, [(10.0, 12.0, "forward"), (12.5, 13.5, "backward")], [])
    assert parts == pytest.approx({"forward": 2.0, "backward": 1.0, "communication": 0.0, "other": 1.0})


def test_nested_phases() -> None:
    """An inner phase is taken out of the outer one, so that each moment counts once."""
    phases = [(1.0, 2.0, "data_wait"), (3.0, 3.5, "data_wait"), (0.0, 4.0, "forward")]
    parts, _ = split_step(0.0, 4.0, phases, [])
    assert parts == pytest.approx({"data_wait": 1.5, "forward": 2.5, "communication": 0.0, "other": 0.0})


def test_blocking_collectives() -> None:
    """A blocking collective is communication inside a phase and outside of any."""
    parts, _ = split_step(0.0, 4.0, [(0.0, 2.0, "forward")], [(1.0, 1.5, True), (3.0, 4.5, True)])
    assert parts == pytest.approx({"forward": 1.5, "communication": 1.5, "other": 1.0})


def test_messages() -> None:
    """Sends and receives of a batch share one time, which counts once and ends with the step."""
    times = ((1.0, 2.0), (1.0, 2.0), (1.5, 2.5))
    batch: list[Collective] = [(start, end, True, MESSAGE) for start, end in times]
    others: list[Collective] = [(0.0, 0.5, True), (3.5, 5.0, True, MESSAGE)]
    assert message_seconds(0.0, 4.0, [*batch, *others]) == pytest.approx(1.5 + 0.5)
    assert message_seconds(0.0, 4.0, others[:1]) == 0.0


def test_overlapped_buckets() -> None:
    """DDP enqueues buckets while it computes; only what follows the last of them is waiting."""
    buckets = [(1.0, 2.0, False), (2.0, 5.0, False), (3.0, 4.0, False)]
    parts, _ = split_step(0.0, 6.0, [(0.0, 6.0, "backward")], buckets)
    assert parts == pytest.approx({"backward": 4.0, "communication": 2.0, "other": 0.0})


def test_waits_beside_buckets() -> None:
    """Waits that were seen are taken out beside buckets that run on, and nothing counts twice."""
    waits = [(1.0, 2.0, True), (3.0, 3.5, True), (5.5, 6.5, True)]
    buckets = [(0.5, 4.0, False), (5.0, 6.0, False)]
    parts, _ = split_step(0.0, 8.0, [(0.0, 8.0, "backward")], [*waits, *buckets])
    assert parts == pytest.approx({"backward": 5.0, "communication": 3.0, "other": 0.0})


def test_late_completion() -> None:
    """The callback waits for the interpreter, but the training thread has left the phase."""
    parts, _ = split_step(0.0, 3.0, [(0.0, 2.0, "backward")], [(1.0, 2.8, False)])
    assert parts == pytest.approx({"backward": 1.0, "communication": 1.0, "other": 1.0})


def test_overlapped_outside_phases() -> None:
    """A thread that goes on into the next phase is not blocked any more."""
    parts, _ = split_step(0.0, 4.0, [(2.0, 3.0, "forward")], [(1.0, 2.8, False)])
    assert parts == pytest.approx({"forward": 1.0, "communication": 1.0, "other": 2.0})


times = st.floats(0.0, 10.0, allow_nan=False)
pairs = st.tuples(times, times).map(sorted)


@BUSY_MACHINE
@given(
    cuts=st.lists(times, min_size=2, max_size=12, unique=True).map(sorted),
    collectives=st.lists(st.tuples(pairs, st.booleans()), max_size=8),
    outer=st.booleans(),
)
def test_parts_sum(cuts: list[float], collectives: list[tuple[list[float], bool]], outer: bool) -> None:
    """Whatever lies in a step, its parts sum to it, and none is negative."""
    start, end = cuts[0], cuts[-1]
    phases = [(a, b, f"p{i % 3}") for i, (a, b) in enumerate(itertools.pairwise(cuts))]
    if outer:
        phases.append((start, end, "outer"))
    inside = [(a, b, blocking) for (a, b), blocking in collectives if start <= a < end]
    parts, _ = split_step(start, end, phases, inside)
    assert sum(parts.values()) == pytest.approx(end - start, abs=1e-6)
    assert all(value >= -1e-9 for value in parts.values())


def test_phase_named_other() -> None:
    """A trainer may declare a phase of that name; it keeps its time."""
    parts, _ = split_step(0.0, 4.0, [(0.0, 1.0, "other")], [])
    assert parts == pytest.approx({"other": 4.0, "communication": 0.0})


@pytest.mark.parametrize("blocking", [True, False])
def test_split_cost(blocking: bool) -> None:
    """Pipeline schedules have thousands of phases; the square of 4,096 took most of a second a step."""

    def lines(count: int) -> int:
        phases = [(1.0 + i / count, 1.0 + (i + 0.5) / count, "a") for i in range(count)]
        phases.append((0.0, 3.0, "b"))
        collectives = [(i / count, i / count + 1e-4, blocking) for i in range(count)]
        return lines_run(lambda: split_step(0.0, 3.0, phases, collectives))

    assert lines(1024) < 8 * 1.2 * lines(128)


def test_phases_in_phases_in_phases() -> None:
    """Each counts what is its own, however deep it lies."""
    phases = [(3.0, 4.0, "inner"), (2.0, 5.0, "middle"), (1.0, 8.0, "outer")]
    parts, own = split_step(0.0, 10.0, phases, [])
    assert own == [1.0, 2.0, 4.0]
    assert parts["other"] == 3.0


@pytest.mark.parametrize(
    ("calls", "blocked"),
    [
        ([(1.0, 1.5), (3.0, 9.0), (7.0, 7.5)], [(1.0, 1.5), (3.0, 6.0), (7.0, 7.5)]),
        ([(1.0, 1.5), (3.0, 9.0)], [(1.0, 1.5), (3.0, 6.0)]),
        ([(1.0, 1.5), (2.0, 5.0)], [(1.0, 1.5), (2.0, 5.0)]),
    ],
    ids=["between two phases: to the beginning of the next", "none in the next", "at the end: outside"],
)
def test_overlapped_between_phases(
    calls: list[tuple[float, float]], blocked: list[tuple[float, float]]
) -> None:
    """What is enqueued between two phases blocks to the next one; those inside of a phase on their own."""
    phases = [(0.0, 2.0, "forward"), (6.0, 8.0, "backward")]
    found = blocked_times(0.0, 10.0, phases, [(start, end, False) for start, end in calls])
    assert [(start, end) for start, end, _ in found] == blocked
