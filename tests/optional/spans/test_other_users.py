"""Traces on a node where another user has runs without end: an honest run keeps its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rankwatch.blackbox.records import Header
from rankwatch.identity import Identity
from rankwatch_agent.runtime.collector import Exemplar
from rankwatch_agent.training.notes import STEP, Exemplars, Notes, Process, Resumed, StepDone
from rankwatch_spans import collector as traces
from rankwatch_spans import state
from rankwatch_spans.queue import TraceSpan
from rankwatch_spans.run_trace import RunTrace
from rankwatch_spans.state import AttemptState, RunState, TraceState
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


def process_of(owner: int, attempt: int = 0) -> Process:
    identity = Identity(run="job", rank=0, world_size=1, local_rank=0, host="h", attempt=attempt)
    header = Header(
        identity=identity, pid=1, started_monotonic=0.0, started_wall=0.0, target_steps=None, capacity=1024
    )
    return Process("job", header, owner)


def test_attempts_without_an_end() -> None:
    """Boxes that break before their ranks end cost no other run its traces: few of them stay open."""
    sent: list[TraceSpan] = []
    trace = RunTrace(
        "c", "job", RunState(seen=0), send=sent.append, heartbeat_seconds=600.0, hold_seconds=1.0
    )
    for attempt in range(1100):
        trace.began(process_of(ALICE, attempt))
        trace.step(StepDone(process_of(ALICE, attempt), 1, 1.0, 2.0, False, (), (), {}))
        trace.tick(float(attempt), 0)
    assert sum(span.name == "attempt" for span in sent) == 1100 - 64


def test_places_for_notes() -> None:
    """A user whose ranks make more notes than fit leaves some to others."""
    notes = Notes(20)
    for owner in (ALICE, CAROL):
        for _ in range(100):
            notes.add(Resumed(process_of(owner)))
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


def test_state_of_names_made_to_be_long(tmp_path: Path) -> None:
    """As many runs as are kept can be read again, whatever their names."""
    kept = TraceState(tmp_path, 0)
    for n in range(state._MOST_KEPT):
        kept.runs[f"{n:04}" + 124 * "\1"] = RunState(seen=n, owner=1)
    kept.save(1)
    assert len(TraceState(tmp_path, 0).runs) == state._MOST_KEPT


def test_exemplars_of_many_runs() -> None:
    """Runs of one user push no other one's run out of the exemplars of its histograms."""
    exemplars = Exemplars()
    exemplars.note("honest", STEP, Exemplar(1, 1, 1.0, 1.0), CAROL)
    for n in range(1000):
        exemplars.note(f"fake{n}", STEP, Exemplar(1, 1, 1.0, 1.0), ALICE)
    assert exemplars.of("honest", STEP) and exemplars.of("fake999", STEP)
    assert not exemplars.of("fake0", STEP)
