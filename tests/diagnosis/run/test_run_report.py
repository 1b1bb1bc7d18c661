"""What a person reads first about a run, and what would mislead them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.simulation.hang import HangFault
from bench.simulation.hang_job import HangJob, simulate_hang, write_hang_boxes
from bench.simulation.program import JobShape
from rankwatch.conventions.states import Cause
from rankwatch.lifecycle import TERMINATED_SUFFIX
from rankwatch_diagnosis.hang.verdict import State
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.report import colour_of, lines
from rankwatch_diagnosis.run.verdict import RunState, unclear
from rankwatch_diagnosis.straggler.verdict import Verdict


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The boxes of a job of 8 ranks in which rank 3 stopped."""
    job = HangJob(shape=JobShape(data_parallel=8), fault=HangFault(ranks=(3,)))
    write_hang_boxes(simulate_hang(job), job, tmp_path, run="job")
    return tmp_path / "job"


@pytest.mark.parametrize(
    ("state", "colour"),
    [
        *((state, "red") for state in (RunState.STALLED, RunState.LOST, RunState.FAILED)),
        *((state, "green") for state in (RunState.RUNNING, RunState.FINISHED)),
        *((state, "yellow") for state in (RunState.STARTING, RunState.TERMINATED, RunState.ENDED)),
    ],
)
def test_colour_of_a_state(state: RunState, colour: str, run: Path) -> None:
    """Red is for what needs somebody, green for what is well, yellow for all else."""
    found = replace(diagnose_run(run), state=state)
    assert next(lines(found)).startswith(f"{state.value.upper()}: ")
    assert colour_of(found) == colour


def test_time_left(run: Path) -> None:
    """Only a run that goes on has time left. A pace says nothing about a run that stands."""
    stalled = diagnose_run(run)
    running = replace(stalled, state=RunState.RUNNING)
    assert "remaining_seconds" in stalled.progress
    assert not any("left at this pace" in line for line in lines(stalled))
    assert any("left at this pace" in line for line in lines(running))


def test_momentary_waits(run: Path) -> None:
    """They are not shown as waits for somebody: in a healthy run some rank is always last."""
    stalled = diagnose_run(run)
    slow = replace(stalled, hang=replace(stalled.hang, state=State.SLOW))
    assert any("it waits for rank 3" in line for line in lines(stalled))
    assert not any("it waits for rank 3" in line for line in lines(slow))
    assert any(
        "waiting:     slow for rank 3: ranks wait for each other, and all of" in x for x in lines(slow)
    )


def test_terminated_run(run: Path) -> None:
    """It shows whom it waited for when someone, or a watchdog, ended it: the boxes still know the rank."""
    for box in list(run.iterdir()):
        box.with_suffix(TERMINATED_SUFFIX).write_text("Current thread (most recent call first):\n")
    verdict = diagnose_run(run)
    assert (verdict.state, verdict.ranks) == (RunState.TERMINATED, ())
    assert verdict.why.startswith(
        "8 ranks are terminated; at the end rank 3 was waited for in all_reduce of "
    )


def test_unclear_slowdown() -> None:
    """A slowdown of unknown cause is not called none: suspects and reason are in the first sentence."""
    seen = Verdict(
        cause=Cause.INCONCLUSIVE,
        ranks=(),
        stages=(),
        first_step=4,
        slowdown=1.2,
        lost_rank_seconds=3.0,
        evidence={"suspected_ranks": [{"rank": 2}], "why": "there are two ranks"},
    )
    assert unclear(seen) == "rank 2 may slow it down, but that is not certain: there are two ranks"
    few = replace(seen, evidence={"why": "only 2 of the 4 steps that a verdict needs are recorded"})
    assert unclear(few) == (
        "it is not known whether anything slows it down: "
        "only 2 of the 4 steps that a verdict needs are recorded"
    )
