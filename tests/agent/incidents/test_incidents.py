"""Incidents of real ranks through the real agent, from opening to closing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankwatch_agent.agent import Agent
from rankwatch_agent.collectors import build_collectors, build_shared
from rankwatch_agent.incidents.collector import IncidentsCollector
from rankwatch_agent.incidents.episodes import EvidenceResult, IncidentRegistry, RootCause
from rankwatch_agent.incidents.evidence import build_evidence
from rankwatch_agent.incidents.metrics_history import MetricsHistory
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.training.conditions import RunConditions
from support.agent.process import ManualClock, agent_process, page, until
from support.incidents.incidents import condition, incident, small_disk
from support.training.ranks import go_on, rank

Pair = tuple[subprocess.Popen[str], subprocess.Popen[str]]

STEPS = "ready()\nsteps(20, 0.01)\nready()\n"
WORK = """
ready()
moments = [time.monotonic()]
for _ in range(100):
    steps(1, 0.01)
    moments.append(time.monotonic())
run.finish()
moments.append(time.monotonic())
longest = max(after - before for before, after in zip(moments, moments[1:]))
Path(directory).with_name("longest_pause").write_text(str(longest))
ready()
"""
STALL_SECONDS = 0.5


def config(tmp_path: Path, *, stall_seconds: float = STALL_SECONDS) -> AgentConfig:
    """Settings of an agent that looks at ranks alone, ten times a second."""
    names = ("ranks", "incidents", "evidence")
    return AgentConfig(
        listen="127.0.0.1:0",
        node="n1",
        directory=tmp_path / "boxes",
        collectors=names,
        intervals_seconds=dict.fromkeys(names, 0.1),
        evidence_directory=str(tmp_path / "evidence"),
        state_directory="",
        stall_seconds=stall_seconds,
    )


@contextmanager
def watching(settings: AgentConfig) -> Iterator[Agent]:
    """The agent with its real collectors."""
    shared = build_shared(settings)
    with Agent(settings, build_collectors(settings, shared), history=shared.history) as agent:
        yield agent


def shows(agent: Agent, line: str) -> bool:
    """Whether the metrics hold this line."""
    return f"\n{line}\n" in page(agent.address)


def bundle(tmp_path: Path) -> Path:
    """The one bundle."""
    (path,) = (tmp_path / "evidence").glob("[!.]*")
    return path


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two ranks of a run; they make some steps once they may go on, and stand then."""
    with (
        rank(tmp_path / "boxes", STEPS, number=0, world=2) as first,
        rank(tmp_path / "boxes", STEPS, number=1, world=2) as second,
    ):
        yield first, second


@pytest.mark.process
def test_stalled_run_gets_a_bundle(tmp_path: Path, pair: Pair) -> None:
    with watching(config(tmp_path)) as agent:
        until(lambda: shows(agent, 'rankwatch_evidence_bundles{node="n1"} 0.0'), "the agent looks")
        for process in pair:
            go_on(process)
        opened = 'rankwatch_incident_open{kind="stall",node="n1",run="job"} 1.0'
        until(lambda: shows(agent, opened), "the stall is seen")
        until(lambda: shows(agent, 'rankwatch_evidence_bundles{node="n1"} 1.0'), "the bundle is there")
        assert shows(agent, 'rankwatch_incidents_total{kind="stall",node="n1",run="job"} 1.0')
        assert shows(agent, 'rankwatch_incidents_total{kind="lost_rank",node="n1",run="job"} 0.0')
    kept = bundle(tmp_path)
    boxes = sorted(path.name for path in (kept / "blackboxes" / "job").iterdir())
    assert boxes == ["0.blackbox", "1.blackbox"]
    assert (
        'rankwatch_steps_total{node="n1",rank="0",run="job"}' in (kept / "metrics" / "after.prom").read_text()
    )
    assert (kept / "metrics" / "before.prom").exists()
    manifest = json.loads((kept / "manifest.json").read_text())
    assert (manifest["run"], manifest["kind"], manifest["node"]) == ("job", "stall", "n1")


@pytest.mark.process
def test_killed_rank_is_the_root_cause(tmp_path: Path, pair: Pair) -> None:
    for process in pair:
        go_on(process)
    with watching(config(tmp_path, stall_seconds=3600.0)) as agent:
        until(lambda: shows(agent, 'rankwatch_evidence_bundles{node="n1"} 0.0'), "the agent looks")
        pair[1].kill()
        lost = 'rankwatch_incident_root_cause{node="n1",phase="",rank="1",run="job",state="lost"} 1.0'
        until(lambda: shows(agent, lost), "the rank is named")
        until(lambda: shows(agent, 'rankwatch_evidence_bundles{node="n1"} 1.0'), "the bundle is there")
        assert shows(agent, lost)
    assert bundle(tmp_path).name.endswith("-job-lost_rank")


@pytest.mark.process
def test_stopped_rank(tmp_path: Path, pair: Pair) -> None:
    """Ranks stopped by SIGSTOP do not hang the agent, and the bundle shows their state."""
    for process in pair:
        go_on(process)
    for process in pair:
        os.kill(process.pid, signal.SIGSTOP)
    with watching(config(tmp_path)) as agent:
        until(lambda: shows(agent, 'rankwatch_evidence_bundles{node="n1"} 1.0'), "the bundle is there")
    assert "State:\tT" in (bundle(tmp_path) / "stacks" / "0.process.txt").read_text()


@pytest.mark.process
def test_working_ranks(tmp_path: Path) -> None:
    """Ranks cause no incident while they work, after their end, or after the machine was suspended."""
    with rank(tmp_path / "boxes", WORK) as process, watching(config(tmp_path)) as agent:
        until(lambda: shows(agent, 'rankwatch_evidence_bundles{node="n1"} 0.0'), "the agent looks")
        go_on(process)
        finished = 'rankwatch_rank_state{node="n1",rank="0",run="job",state="finished"} 1.0'
        until(lambda: shows(agent, finished), "the run has finished")
        none = 'rankwatch_incidents_total{{kind="{}",node="n1",run="job"}} 0.0'
        until(lambda: shows(agent, none.format("lost_rank")), "the incidents were looked for")
        quiet = shows(agent, none.format("stall"))
    if quiet:
        assert list((tmp_path / "evidence").iterdir()) == []
    else:
        assert float((tmp_path / "longest_pause").read_text()) > STALL_SECONDS / 2


@pytest.mark.process
def test_read_only_disk(tmp_path: Path) -> None:
    """The error names the directory, whether it exists or not."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        (disk / "there").mkdir()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for name in ("there", "missing"):
            settings = AgentConfig(evidence_directory=str(disk / name))
            collector = build_evidence(settings, registry=IncidentRegistry(), history=MetricsHistory())
            with pytest.raises(CollectError, match=rf"could not (create|use) .*/{name}: "):
                collector.collect()


def test_no_evidence_directory(tmp_path: Path) -> None:
    """Not applicable if the setting is empty or the parent of the directory is missing."""
    for directory in ("", str(tmp_path / "missing" / "evidence")):
        settings = AgentConfig(evidence_directory=directory)
        collector = build_evidence(settings, registry=IncidentRegistry(), history=MetricsHistory())
        with pytest.raises(NotApplicable):
            collector.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_incident_waits_for_the_directory(tmp_path: Path) -> None:
    """Its bundle is written once the directory is usable."""
    place = tmp_path / "evidence"
    place.touch()
    registry = IncidentRegistry()
    opened = incident([], moment=time.monotonic())
    registry.update({"job": opened}, [opened])
    collector = build_evidence(config(tmp_path), registry=registry, history=MetricsHistory())
    for _ in range(3):
        with pytest.raises(CollectError, match=r"could not create .*evidence: File exists"):
            collector.collect()
    place.unlink()
    collector.collect()
    assert bundle(tmp_path).name.endswith("-job-stall")


@pytest.mark.process
def test_killed_agent(tmp_path: Path) -> None:
    """The next agent removes partial bundles and keeps complete ones."""
    place = tmp_path / "evidence"
    for name in (".partial-20010909T014640Z-job-stall", "20010909T014640Z-job-stall"):
        (place / name).mkdir(parents=True)
    with agent_process(tmp_path, "--evidence-directory", str(place), "--collectors", "evidence") as agent:
        until(lambda: "rankwatch_evidence_bundles{" in agent.page(), "the directory was looked at")
    assert [each.name for each in place.iterdir()] == ["20010909T014640Z-job-stall"]


def incidents_of(
    conditions: RunConditions, registry: IncidentRegistry, clock: ManualClock
) -> IncidentsCollector:
    return IncidentsCollector(
        conditions=conditions,
        registry=registry,
        stall_seconds=30.0,
        schedule=Schedule(1.0, 5.0),
        monotonic=clock,
    )


def test_no_root_cause_after_the_stall() -> None:
    """It stays open for its minute, but later evidence may show another state."""
    clock, conditions, registry = ManualClock(200.0), RunConditions(), IncidentRegistry()
    collector = incidents_of(conditions, registry, clock)

    def series(*progress: float) -> list[tuple[str, float]]:
        conditions.update(
            {"job": [condition(rank, progress=each) for rank, each in enumerate(progress)]}, clock.now
        )
        found = collector.collect().series
        wanted = ("rankwatch_incident_open", "rankwatch_incident_root_cause")
        return [(each.metric.name, each.value) for each in found if each.metric.name in wanted and each.value]

    assert series(100.0, 100.0) == [("rankwatch_incident_open", 1.0)]
    incident = registry.next_pending()
    assert incident is not None
    registry.set_result(incident, EvidenceResult(Path("/bundle"), (RootCause(1, "hang", ""),)))
    assert ("rankwatch_incident_root_cause", 1.0) in series(100.0, 100.0)
    clock.now = 201.0
    assert series(100.0, 200.5) == [("rankwatch_incident_open", 1.0)]


@pytest.mark.process
def test_stopped_rank_without_evidence(tmp_path: Path) -> None:
    """Where no bundle is kept, a rank whose process a signal stopped is named by that alone."""
    conditions = RunConditions()
    collector = incidents_of(conditions, IncidentRegistry(), ManualClock(200.0))

    def named() -> list[tuple[str, ...]]:
        found = collector.collect().series
        return [each.labels for each in found if each.metric.name == "rankwatch_incident_root_cause"]

    with (
        rank(tmp_path, "ready()", world=2) as runs,
        rank(tmp_path, "ready()", number=1, world=2) as stopped,
    ):
        boxes = [tmp_path / "job" / f"{number}.blackbox" for number in range(2)]
        conditions.update({"job": [condition(at, path=path) for at, path in enumerate(boxes)]}, 200.0)
        assert named() == []
        os.kill(stopped.pid, signal.SIGSTOP)
        until(lambda: named() == [("job", "1", "stopped", "forward")], "it is named")
        assert runs.poll() is None
