"""The ledgers of all runs of a node, over restarts of the agent."""

from __future__ import annotations

from pathlib import Path

import rankwatch
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.goodput.run_ledgers import RunLedgers


def steps(run: rankwatch.Run, count: int) -> None:
    for _ in range(count):
        with run.step():
            pass


def test_process_before_a_restart(tmp_path: Path) -> None:
    """An agent that is killed takes with it nothing of a process whose box another one has replaced."""
    boxes, state = tmp_path / "boxes", tmp_path / "state"
    boxes.mkdir()
    ledgers = RunLedgers(state, 0.0)
    agent = RanksCollector(directory=boxes, ledgers=ledgers)
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
