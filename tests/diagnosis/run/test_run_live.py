"""Real runs over gloo that go wrong, diagnosed while their processes live."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankwatch.conventions import Cause
from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.verdict import RunState, RunVerdict
from support.diagnosis.run_ranks import gloo_run

pytestmark = pytest.mark.e2e

DEADLINE_SECONDS = 120.0
"""Three processes import torch at once."""


def verdict_when(directory: Path, told: Callable[[RunVerdict], bool]) -> RunVerdict:
    """The first verdict of which this is true."""
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        try:
            verdict = diagnose_run(directory, stall=1.0)
        except UserError:
            time.sleep(0.2)  # nothing to read yet
            continue
        if told(verdict):
            return verdict
    raise AssertionError("no such verdict came")


@pytest.mark.parametrize(("wrong", "state"), [("asleep", "hang"), ("gathers", "desync")])
def test_live_stall(wrong: str, state: str, tmp_path: Path) -> None:
    """A rank that holds up a living run is named.

    With the phase that it is in; the flight recorders of all ranks answer meanwhile.
    """
    with gloo_run(tmp_path, {1: wrong}):
        verdict = verdict_when(tmp_path, lambda each: each.state is RunState.STALLED and bool(each.ranks))
    assert (verdict.ranks, verdict.hang.state.value) == ((1,), state)
    assert verdict.sources["flight_recorders_live"] == 3
    assert ("data_wait" in verdict.why) is (wrong == "asleep")
    good = verdict.checkpoints["last_good"]
    assert isinstance(good, dict)
    assert good["step"] == 2


@pytest.mark.parametrize(("wrong", "state"), [("killed", RunState.LOST), ("raises", RunState.FAILED)])
def test_live_death(wrong: str, state: RunState, tmp_path: Path) -> None:
    """A rank that dies is named and not those that fail after it.

    Gloo lets the others fail as soon as its connection is gone.
    """
    with gloo_run(tmp_path, {2: wrong}):
        verdict = verdict_when(tmp_path, lambda each: each.state is state)
    assert verdict.ranks == (2,)
    assert set(verdict.hang.ranks) <= {2}
    reasons = verdict.hang.evidence.get("reasons", {})
    assert isinstance(reasons, dict)
    assert set(reasons) <= {"2"}
    assert wrong != "killed" or reasons.get("2", "is gone") == "is gone"


def test_live_slow_rank(tmp_path: Path) -> None:
    """A living run with a slow rank is running and names it. Boxes are read while they are written."""
    with gloo_run(tmp_path, {2: "slow"}, at=10_000, steps=10_000):
        verdict = verdict_when(tmp_path, lambda each: bool(each.ranks))
    assert (verdict.state, verdict.ranks) == (RunState.RUNNING, (2,))
    assert verdict.straggler is not None
    assert verdict.straggler.cause is Cause.SLOW_RANK
    assert verdict.straggler.slowdown > 1.5


def test_rank_stopped_inside_a_collective(tmp_path: Path) -> None:
    """All ranks have come to the collective, and one of them was stopped by a signal in it: it is named.

    No count of collectives shows that. The kernel does, and its flight recorder alone is silent.
    """
    with gloo_run(tmp_path, {0: "late", 1: "stopped"}):
        verdict = verdict_when(tmp_path, lambda each: each.ranks == (1,))
    assert (verdict.state, verdict.hang.operation) == (RunState.STALLED, "all_reduce")
    assert verdict.why.endswith("; its process does not run")
    reasons = verdict.hang.evidence["reasons"]
    assert isinstance(reasons, dict)
    assert set(reasons) == {"1"}
    assert "state T" in reasons["1"]
    states = [each["process"]["state"] for each in verdict.ranks_seen]  # type: ignore[index]
    assert [state == "T" for state in states] == [False, True, False]
