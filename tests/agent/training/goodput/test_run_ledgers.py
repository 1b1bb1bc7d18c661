"""The ledgers of all runs of a node, over restarts of the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankwatch
from rankwatch.conventions.states import GoodputState
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.goodput import run_ledgers
from rankwatch_agent.training.goodput.run_ledgers import RunLedgers


def steps(run: rankwatch.Run, count: int) -> None:
    for _ in range(count):
        with run.step():
            pass


def test_process_before_a_restart(tmp_path: Path) -> None:
    """An agent that is killed takes with it nothing of a process whose box another one has replaced."""
    boxes, state = tmp_path / "boxes", tmp_path / "state"
    boxes.mkdir()
    agent = RanksCollector(directory=boxes, state_directory=state)
    ledgers = agent.ledgers
    with rankwatch.start(run="job", directory=boxes, rank=0) as run:
        steps(run, 2)
        agent.collect()
        steps(run, 3)
    with rankwatch.start(run="job", directory=boxes, rank=0) as run:
        agent.collect()
        steps(run, 1)
    after = RunLedgers(state, 0.0).of("job")
    assert after.ranks[0].process == ledgers.of("job").ranks[0].process
    assert after.attempts.by_number[0].highest_step == 4
    assert after.ranks[0].by_attempt[0] == ledgers.of("job").ranks[0].by_attempt[0]


def test_many_attempts_of_a_run_that_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many, a run keeps the sums of the ranks that are here: neither memory nor the file is full."""
    monkeypatch.setattr(run_ledgers, "_MOST_KEPT", 20)
    agent = RanksCollector(directory=tmp_path)
    with rankwatch.start(run="job", directory=tmp_path, rank=0):
        agent.collect()
        job = agent.ledgers.of("job")
        job.rank_of(7, "")
        job.ranks[0].by_attempt |= {number: {GoodputState.PRODUCTIVE: 1.0} for number in range(1, 31)}
        agent.collect()
    assert job.ranks.keys() == {0} and job.size <= 20
    assert job.seconds[GoodputState.PRODUCTIVE] == 30.0
