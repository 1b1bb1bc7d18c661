"""Traces on a node where another user has runs without end: an honest run keeps its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rankwatch.blackbox.records import Header
from rankwatch.identity import Identity
from rankwatch_agent.training.spans import collector as traces
from rankwatch_agent.training.spans import state
from rankwatch_agent.training.spans.records import Notes, Process, Resumed
from rankwatch_agent.training.spans.state import AttemptState, RunState, TraceState
from support.processes.users import ALICE, CAROL, become, node_directory, run_as
from support.training.ranks import go_on, rank
from support.training.traced import Node

__all__ = ["node_directory"]

_TRAINING = "steps(3)\nready()\nrun.finish()\nready()"


@pytest.mark.process
def test_places_for_runs(node_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one user that took all places give one up for the run of another, and none for more of their
    own."""
    monkeypatch.setattr(traces, "MAX_RUNS", 5)
    node = Node(node_directory)
    run_as(ALICE, node_directory, "for n in range(8): box(f'fake{n}', 0, capacity=256)")
    node.read()
    with rank(node_directory, _TRAINING, before=become(CAROL)) as process:
        node.read()
        go_on(process)
        node.pass_time(30)
    runs = {span.attributes["rankwatch.run"] for span in node.named("attempt")}
    assert "job" in runs and len(runs) <= 5


def test_places_for_notes() -> None:
    """A user whose ranks make more notes than fit leaves some to others."""
    notes = Notes(20)
    for owner in (ALICE, CAROL):
        identity = Identity(run="job", rank=0, world_size=1, local_rank=0, host="h")
        header = Header(
            identity=identity,
            pid=1,
            started_monotonic=0.0,
            started_wall=0.0,
            target_steps=None,
            capacity=1024,
        )
        for _ in range(100):
            notes.add(Resumed(Process("job", header, owner)))
    assert Counter(each.process.owner for each in notes.take()) == {ALICE: 20, CAROL: 5}
    assert notes.dropped == 175


def test_state_of_many_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and attempts of one user push no other one's run out of the file."""
    monkeypatch.setattr(state, "_MOST_KEPT", 20)
    kept = TraceState(tmp_path, 0)
    kept.runs["honest"] = RunState(seen=1, owner=1, attempts={0: AttemptState(1, 1)})
    for n in range(10):
        kept.runs[f"fake{n}"] = RunState(seen=2 + n, owner=2, attempts={0: AttemptState(1, 1)})
    kept.runs["many"] = RunState(seen=9, owner=2, attempts={n: AttemptState(1, 1) for n in range(10)})
    kept.save(1)
    found = TraceState(tmp_path, 0).runs
    assert "honest" in found and sum(each.size for each in found.values()) <= 20
