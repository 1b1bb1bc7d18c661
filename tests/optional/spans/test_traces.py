"""Traces of real ranks: their spans, their ids, and what is sent once and only once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankwatch.identity import rank_step_span, run_trace, step_trace, trace_text
from rankwatch_agent.runtime.exposition import Exposition
from rankwatch_agent.runtime.supervisor import Snapshot
from rankwatch_agent.training.notes import OpenIncident
from rankwatch_spans.queue import TraceSpan
from support.training.traced import Node, train

pytestmark = pytest.mark.process

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def check(spans: Sequence[TraceSpan]) -> None:
    """Every id occurs once, and every parent is there."""
    ids = Counter((each.trace, each.span) for each in spans)
    assert [each for each, count in ids.items() if count > 1] == []
    assert {each.name for each in spans if each.parent and (each.trace, each.parent) not in ids} == set()
    assert 0 not in {number for pair in ids for number in pair}
    assert all(each.start <= each.end for each in spans)


def test_run_trace(tmp_path: Path) -> None:
    """Run, attempt, checkpoint with its stages, evaluation and a heartbeat, each below its parent."""
    train(tmp_path)
    node = Node(tmp_path, one_in=0).read_for(8)
    check(node.sent)
    spans = {each.span: each for each in node.sent}
    tree = {each.name: spans[each.parent].name if each.parent else "" for each in node.sent}
    assert tree == {
        "run": "",
        "run.started": "run",
        "attempt": "run",
        "heartbeat": "attempt",
        "checkpoint.save": "attempt",
        "checkpoint.save.write": "checkpoint.save",
        "evaluation": "attempt",
    }
    assert {each.trace for each in node.sent} == {run_trace("c", "job")}
    run, attempt, save = (node.named(name)[0] for name in ("run", "attempt", "checkpoint.save"))
    assert run.attributes["rankwatch.run"] == run.attributes["cicd.pipeline.run.id"] == "job"
    assert run.attributes["rankwatch.result"] == run.attributes["cicd.pipeline.result"] == "success"
    assert attempt.attributes["cicd.pipeline.task.run.result"] == "success"
    assert (save.attributes["rankwatch.checkpoint.size"], save.attributes["dl.rank"]) == (10, 0)
    assert run.start == attempt.start <= save.start <= save.end <= attempt.end == run.end


def test_step_traces(tmp_path: Path) -> None:
    """A sampled step is one trace of all ranks, linked to the attempt, which links back."""
    train(tmp_path, ranks=2, world=2)
    node = Node(tmp_path).read_for(8)
    check(node.sent)
    steps = node.named("step")
    expected = {(step_trace("c", "job", 0, number), rank) for number in range(3) for rank in range(2)}
    assert {(each.trace, each.attributes["rankwatch.rank"]) for each in steps} == expected
    assert all(each.span == rank_step_span(each.trace, each.attributes["dl.rank"]) for each in steps)  # type: ignore[arg-type]
    attempt = node.named("attempt")[0]
    assert {(link.trace, link.span) for each in steps for link in each.links} == {
        (attempt.trace, attempt.span)
    }
    linked = [link for each in node.named("heartbeat") for link in each.links]
    assert sorted(link.trace for link in linked) == sorted({each.trace for each in steps})
    assert {(link.trace, link.span) for link in linked} <= {(each.trace, each.span) for each in steps}
    forward = node.named("forward")
    assert {each.parent for each in forward} == {each.span for each in steps}
    assert steps[0].attributes["rankwatch.loss"] == steps[0].attributes["dl.loss"] == 2.5


@pytest.mark.parametrize(
    ("how", "why", "number"), [("failed", "failed", 20), ("slow", "slow", 25), ("lost", "failed", 29)]
)
def test_steps_with_a_reason(tmp_path: Path, how: str, why: str, number: int) -> None:
    """A failed step, a slow one and one that its rank did not survive are sampled, the others are not."""
    train(tmp_path, steps=20 if how == "failed" else 30, how=how)
    node = Node(tmp_path, one_in=0).read_for(8)
    reasons = {
        each.attributes["rankwatch.step"]: each.attributes["rankwatch.sampled"] for each in node.named("step")
    }
    assert reasons[number] == why
    assert len(reasons) <= 4  # a busy machine has slow steps of its own
    if how == "failed":
        attempt = node.named("attempt")[0]
        assert attempt.attributes["rankwatch.result"] == "failure"
        assert attempt.attributes["exception.type"] == "ValueError"
        assert attempt.attributes["exception.message"] == "no luck"


def test_resumed_step(tmp_path: Path) -> None:
    """The first step after a restart is sampled, of a process that says it resumed or is a later attempt."""
    train(tmp_path, how="resumed")
    node = Node(tmp_path, one_in=0)
    node.read()
    train(tmp_path, TORCHELASTIC_RESTART_COUNT="1")
    node.read_for(8)
    found = [
        (each.attributes["rankwatch.attempt"], each.attributes["rankwatch.step"])
        for each in node.named("step")
    ]
    assert found == [(0, 0), (1, 0)]
    assert {each.attributes["rankwatch.sampled"] for each in node.named("step")} == {"resumed"}


def test_incident(tmp_path: Path) -> None:
    """Steps of an incident are sampled, and the incident itself is a span of the run."""
    train(tmp_path)
    open_now = {"job": OpenIncident(1, "job", "stall", 0.0, False)}
    node = Node(tmp_path, one_in=0, incidents=lambda: open_now).read_for(2)
    assert {each.attributes["rankwatch.sampled"] for each in node.named("step")} == {"incident"}
    open_now = {}
    train(tmp_path)
    node.read()
    incident = node.named("incident")[0]
    assert incident.attributes["rankwatch.incident.kind"] == "stall"
    node.pass_time(8)
    check(node.sent)


def test_scheduler_trace_is_linked(tmp_path: Path) -> None:
    """The run has a trace of its own: a restart comes with another TRACEPARENT."""
    train(tmp_path, TRACEPARENT=TRACEPARENT)
    node = Node(tmp_path).read_for(8)
    for name in ("run", "attempt"):
        span = node.named(name)[0]
        assert [(trace_text(link.trace), f"{link.span:016x}") for link in span.links] == [
            ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
        ]
        assert span.attributes["rankwatch.scheduler.trace_id"] == "0af7651916cd43dd8448eb211c80319c"
        assert trace_text(span.trace) != "0af7651916cd43dd8448eb211c80319c"


def test_three_attempts_on_two_nodes(tmp_path: Path) -> None:
    """Each node sends its part, and together they are one trace: no id twice, no parent missing. The rank 0
    moves to the other node meanwhile."""
    directories = [tmp_path / "a", tmp_path / "b"]
    nodes = [Node(each, node=each.name) for each in directories]
    for attempt, first in enumerate((0, 2, 0)):
        count = {"TORCHELASTIC_RESTART_COUNT": str(attempt)}
        how = "ok" if attempt == 2 else "failed"
        for directory, node in zip(directories, nodes, strict=True):
            begin = first if directory.name == "a" else 2 - first
            train(directory, ranks=2, first=begin, world=4, how=how, **count)
            node.read()
    for node in nodes:
        node.pass_time(8)
    spans = [span for node in nodes for span in node.sent]
    check(spans)
    assert Counter(each.name for each in spans if each.name in ("run", "attempt", "run.started")) == {
        "run": 1,
        "run.started": 1,
        "attempt": 3,
    }
    steps = Counter(each.trace for each in spans if each.name == "step")
    assert set(steps.values()) == {4}


def test_agent_restarts(tmp_path: Path) -> None:
    """The next agent goes on where the last one ended: nothing comes twice, and attempts that ended meanwhile
    still come."""
    boxes, state = tmp_path / "boxes", tmp_path / "state"
    train(boxes, how="failed")
    first = Node(boxes, state=state, hold_seconds=3.0)
    first.read()  # attempt 0 is noted, and not sent yet
    first.traces.close()
    first.sent += first.queue.take(1000)
    train(boxes, TORCHELASTIC_RESTART_COUNT="1")
    second = Node(boxes, state=state).read_for(8)
    third = Node(boxes, state=state).read_for(8)
    check([*first.sent, *second.sent, *third.sent])
    assert len(second.named("attempt")) == 2
    assert third.sent == []


def test_agent_dies(tmp_path: Path) -> None:
    """A killed agent loses what it held. The next one sends nothing twice, and misses no parent."""
    boxes, state = tmp_path / "boxes", tmp_path / "state"
    train(boxes)
    first = Node(boxes, state=state, hold_seconds=3.0)
    first.read()
    second = Node(boxes, state=state).read_for(8)
    check([*first.sent, *second.sent])
    assert len(second.named("run")) == 1


def test_agent_dies_between_attempts(tmp_path: Path) -> None:
    """The next one sends the attempt that the killed one had seen, and whose box another one has by now."""
    boxes, state = tmp_path / "boxes", tmp_path / "state"
    train(boxes, how="lost")
    first = Node(boxes, state=state, hold_seconds=3.0)
    first.read()
    train(boxes, how="lost", TORCHELASTIC_RESTART_COUNT="1")
    first.read()
    train(boxes, TORCHELASTIC_RESTART_COUNT="2")
    second = Node(boxes, state=state).read_for(8)
    check([*first.sent, *second.sent])
    assert sorted(each.attributes["rankwatch.attempt"] for each in second.named("attempt")) == [0, 1, 2]


def test_broken_state(tmp_path: Path) -> None:
    """A state that cannot be read counts as none: an agent must start."""
    (tmp_path / "state").mkdir()
    for text in ("", "[]", '{"until": "x", "runs": {}}', '{"until": 1, "runs": {"job": {"seen": 1}}}'):
        (tmp_path / "state" / "traces.json").write_text(text)
        Node(tmp_path / "boxes", state=tmp_path / "state").read()


def test_late_rank_joins_the_trace(tmp_path: Path) -> None:
    """A rank that is read after the decision about its step follows the decision."""
    train(tmp_path, ranks=1, world=2)
    node = Node(tmp_path).read_for(3)
    train(tmp_path, ranks=1, first=1, world=2, RANKWATCH_ATTEMPT="0")
    node.read_for(3)
    steps = Counter(each.trace for each in node.named("step"))
    assert sum(steps.values()) == 6
    check([each for each in node.sent if each.name in ("step", "forward")])


def test_exemplars(tmp_path: Path) -> None:
    """Histograms name the newest trace in each bucket, to an OpenMetrics scrape only."""
    train(tmp_path)
    node = Node(tmp_path).read_for(8)
    collection = node.read()
    found = {each.metric.name: each for each in collection.histograms}
    steps, saves = found["rankwatch_step_duration_seconds"], found["rankwatch_checkpoint_duration_seconds"]
    sent = {(each.trace, each.span): each for each in node.sent}
    for histogram, name in ((steps, "step"), (saves, "checkpoint.save")):
        assert histogram.exemplars
        for number, exemplar in histogram.exemplars.items():
            assert sent[exemplar.trace, exemplar.span].name == name
            bounds = (0.0, *(bound for bound, _ in histogram.buckets))
            assert bounds[number] < exemplar.value <= bounds[number + 1]
    exposition = Exposition({"node": "n0"})
    snapshot = Snapshot((collection,), ())
    openmetrics, text = (
        exposition.render(snapshot, accept=accept, accept_encoding="").body.decode()
        for accept in ("application/openmetrics-text; version=1.0.0", "text/plain")
    )
    pattern = r'_bucket\{.*\} \d+\.0 # (\{span_id="[0-9a-f]{16}",trace_id="[0-9a-f]{32}"\}) \d\S* \d+\.\d{3}$'
    labels = re.findall(pattern, openmetrics, re.MULTILINE)
    assert len(labels) == len(steps.exemplars) + len(saves.exemplars)
    assert all(len(each) <= 128 for each in labels)
    assert "trace_id" not in text
