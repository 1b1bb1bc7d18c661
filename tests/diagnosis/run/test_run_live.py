"""Real runs over gloo that go wrong, diagnosed while their processes live."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankwatch.conventions import Cause
from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.verdict import RunState, RunVerdict
from support.jobs.forked_ranks import shared_ranks

pytestmark = pytest.mark.process

DEADLINE_SECONDS = 120.0
_RANK = """
import json, os, signal, sys, threading, time
import torch
import torch.distributed as dist
import rankwatch
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
wrong, at, steps = json.loads(sys.argv[1]).get(str(rank), "well"), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
run = rankwatch.start(target_steps=steps, coordinates={"dp": (rank, world)})
dist.init_process_group("gloo")
values = torch.ones(1000)
for step in range(steps):
    with run.step():
        with run.phase("data_wait"):
            time.sleep(0.001)
            if step == at and wrong == "asleep":
                time.sleep(1000)
            if step == at and wrong == "late":
                time.sleep(2.0)
        if step == at and wrong == "stopped":  # while it waits in the collective for the one that is late
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGSTOP)).start()
        with run.phase("forward"):
            time.sleep(0.04 if wrong == "slow" else 0.01)
            if step == at and wrong == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if step == at and wrong == "raises":
                raise ZeroDivisionError
        with run.phase("backward"):
            time.sleep(0.08 if wrong == "slow" else 0.02)
        if step == at and wrong == "gathers":
            dist.all_gather_into_tensor(torch.empty(1000 * world), values)
        else:
            dist.all_reduce(values)
        if step == 2 and rank == 0:
            with run.checkpoint("save"):
                pass
        run.scalar("loss", 3.0 - 0.01 * step)
        run.work(tokens=64)
if steps > at:
    time.sleep(1000)  # one that others do not hold up
run.finish()
"""


@contextmanager
def gloo_run(directory: Path, wrong: Mapping[int, str], *, at: int = 6, steps: int = 12) -> Iterator[None]:
    """Start three ranks; `wrong` says what a rank does at step `at`. All are killed at the end."""
    environ = {**os.environ, "RANKWATCH_DIR": str(directory), "RANKWATCH_RUN": "job"}
    job = ["-c", _RANK, json.dumps(wrong), str(at), str(steps)]
    ranks = shared_ranks().start(job, environ, ranks=3, log=directory / "log")
    try:
        yield
    finally:
        shared_ranks().kill(ranks)


def verdict_when(directory: Path, told: Callable[[RunVerdict], bool]) -> RunVerdict:
    """The first verdict of which this is true."""
    end = time.monotonic() + DEADLINE_SECONDS
    verdict = None
    while time.monotonic() < end:
        try:
            verdict = diagnose_run(directory, stall=1.0)
        except UserError:
            time.sleep(0.2)  # nothing to read yet
            continue
        if told(verdict):
            return verdict
    raise AssertionError(f"no such verdict came; the last one: {verdict}")


@pytest.mark.parametrize(("wrong", "state"), [("asleep", "hang"), ("gathers", "desync")])
def test_live_stall(wrong: str, state: str, tmp_path: Path) -> None:
    """A rank that holds up a living run is named.

    With the phase that it is in; the flight recorders of all ranks answer meanwhile.
    """
    with gloo_run(tmp_path, {1: wrong}):
        verdict = verdict_when(
            tmp_path,
            lambda each: (
                each.state is RunState.STALLED
                and bool(each.ranks)
                and each.sources["flight_recorders_live"] == 3
            ),
        )
    assert (verdict.ranks, verdict.hang.state.value) == ((1,), state)
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
        verdict = verdict_when(tmp_path, lambda each: each.state is RunState.RUNNING and bool(each.ranks))
    assert verdict.ranks == (2,)
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
