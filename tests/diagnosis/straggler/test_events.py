"""Single steps that take long are events, and no trend follows from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.outliers import outlying
from rankwatch_diagnosis.straggler.engine import diagnose, find_events
from support.diagnosis.operations import SmallJob


def short_steps(steps: int, *, dp: int = 4) -> SmallJob:
    """Steps of about 37 ms."""
    return SmallJob(dp=dp, steps=steps, microbatches=1)


def the_event(job: SmallJob, cause: Cause = Cause.NONE) -> dict[str, Any]:
    """The only event of the job, which slows nothing down."""
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks, verdict.slowdown) == (cause, (), 1.0)
    (event,) = verdict.events
    assert verdict.event_seconds == event["lost_seconds"]
    return dict(event)


@pytest.mark.parametrize("steps", [600, 1800])
def test_one_long_collective(steps: int) -> None:
    """A collective of 40 s is no slow network, however long the run goes on. Nobody came late to it."""
    job = short_steps(steps)
    job.transfer[300] = 10_000.0
    event = the_event(job)
    assert (event["step"], event["operation"], event["ranks"]) == (300, "all_reduce", [])
    assert event["lost_seconds"] == pytest.approx(40.0, abs=8.0)


def test_one_long_forward_pass() -> None:
    """The seconds that a rank loses in one pass are reported with the rank and the phase."""
    job = short_steps(600)
    job.compute[200, 2] = 470.0
    event = the_event(job)
    assert (event["step"], event["operation"], event["ranks"]) == (200, "backward", [2])
    assert event["lost_seconds"] == pytest.approx(14.0, rel=0.2)


def test_events_of_a_lone_rank() -> None:
    """A single rank has no peers, and its events are reported all the same."""
    job = short_steps(100, dp=1)
    job.loading[50] = 1_000.0
    event = the_event(job, Cause.INCONCLUSIVE)
    assert (event["step"], event["operation"], event["ranks"]) == (50, "load", [0])


def test_pause_at_the_end_of_a_step() -> None:
    """The peers wait in the next step for a rank that pauses at the end of one. The time is lost once."""
    table = short_steps(100).table()
    paused, waiting = 40, 41
    end = table.start_seconds + table.duration_seconds
    last = np.flatnonzero((table.step == paused) & (table.rank == 2))[-1]
    first = [np.flatnonzero((table.step == waiting) & (table.rank == rank))[0] for rank in (0, 1, 3)]
    later = table.start_seconds >= end[last]
    start, duration = table.start_seconds.copy(), table.duration_seconds.copy()
    duration[last] += 1.0
    start[later] += 1.0
    for each in first:
        start[each] -= 1.0
        duration[each] += 1.0
    kinds, operations = table.kind.copy(), table.operation.copy()
    kinds[first], operations[first] = int(Kind.COMMUNICATION), table.operations.index("all_reduce")
    kinds[last], operations[last] = int(Kind.COMPUTE), table.operations.index("backward")
    moved = replace(table, start_seconds=start, duration_seconds=duration, kind=kinds, operation=operations)
    found = find_events(moved)
    assert [(each["step"], each["ranks"]) for each in found.listed] == [(paused, [2])]
    assert found.lost_seconds == pytest.approx(1.0, rel=0.05)


def test_pause_of_all_ranks() -> None:
    """All ranks were late in their own work: all of them are in the event."""
    job = short_steps(100)
    job.compute[40] = 100.0
    assert the_event(job)["ranks"] == [0, 1, 2, 3]


def test_trend_beside_events() -> None:
    """A slow rank is found and priced as without the event. The worst event comes first."""
    slow = short_steps(200).slow_rank(1, 1.5)
    alone = diagnose(slow.table())
    slow = short_steps(200).slow_rank(1, 1.5)
    slow.transfer[100], slow.transfer[150] = 1_000.0, 5_000.0
    verdict = diagnose(slow.table())
    assert (verdict.cause, verdict.ranks) == (Cause.SLOW_RANK, (1,))
    assert verdict.slowdown == pytest.approx(alone.slowdown, abs=0.01)
    assert [each["step"] for each in verdict.events] == [150, 100]


@pytest.mark.parametrize("long", [range(50, 54), range(0, 100, 10)], ids=["four in a row", "every tenth"])
def test_states_and_patterns(long: range) -> None:
    """What lasts is a state of the run, and what comes again and again is a pattern: no single events."""
    seconds = [3.0 if step in long else 1.0 for step in range(100)]
    assert not any(outlying(seconds))


def test_no_steps() -> None:
    """Nothing is odd among no steps, nor among steps of no duration."""
    assert outlying([]) == []
    assert outlying([0.0, 0.0, 0.0]) == [False] * 3


def test_long_step_among_noisy_ones() -> None:
    """Where one short step in four takes three times as long, one that takes 1,000 times is an event."""
    seconds = [0.001, 0.001, 0.003, 0.001] * 8
    assert not any(outlying(seconds))
    seconds[13] = 1.3
    assert [step for step, odd in enumerate(outlying(seconds)) if odd] == [13]
