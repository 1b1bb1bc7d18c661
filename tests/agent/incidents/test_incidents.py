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
from rankwatch_agent.incidents.metrics_history import MAX_PAGE_BYTES, PAGE_INTERVAL_SECONDS, MetricsHistory
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.training.conditions import RankCondition, RunConditions
from support.agent.process import ManualClock, page, until
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
            with pytest.raises(CollectError, match=rf"could not (create|use) .*/{name}: "):
                evidence_in(str(disk / name))


def test_no_evidence_directory(tmp_path: Path) -> None:
    """Not applicable if the setting is empty or the parent of the directory is missing."""
    for directory in ("", str(tmp_path / "missing" / "evidence")):
        with pytest.raises(NotApplicable, match="evidence"):
            evidence_in(directory)
    assert list(tmp_path.iterdir()) == []


def evidence_in(directory: str) -> None:
    """Collect once with this setting."""
    settings = AgentConfig(evidence_directory=directory)
    build_evidence(settings, registry=IncidentRegistry(), history=MetricsHistory()).collect()


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


class Incidents:
    """The collector of incidents, of ranks as a test says at moment 200."""

    def __init__(self) -> None:
        self.clock, self.conditions, self.registry = ManualClock(200.0), RunConditions(), IncidentRegistry()
        self._collector = IncidentsCollector(
            conditions=self.conditions,
            registry=self.registry,
            stall_seconds=30.0,
            schedule=Schedule(1.0, 5.0),
            monotonic=self.clock,
        )

    def of(self, *ranks: RankCondition) -> dict[str, list[tuple[str, ...]]]:
        """Labels of the series that are not 0, by the end of their names."""
        self.conditions.update({"job": ranks}, self.clock.now)
        found: dict[str, list[tuple[str, ...]]] = {"open": [], "root_cause": []}
        for each in self._collector.collect().series:
            if each.value:
                found.setdefault(each.metric.name.removeprefix("rankwatch_incident_"), []).append(each.labels)
        return found


def test_no_root_cause_after_the_stall() -> None:
    """It stays open for its minute, but later evidence may show another state."""
    incidents = Incidents()
    found = incidents.of(condition(0), condition(1))
    assert (len(found["open"]), found["root_cause"]) == (1, [])
    opened = incidents.registry.next_pending()
    assert opened is not None
    incidents.registry.set_result(opened, EvidenceResult(Path("/bundle"), (RootCause(1, "hang", ""),)))
    assert len(incidents.of(condition(0), condition(1))["root_cause"]) == 1
    incidents.clock.now = 201.0
    found = incidents.of(condition(0), condition(1, progress=200.5))
    assert (len(found["open"]), found["root_cause"]) == (1, [])


@pytest.mark.process
def test_stopped_rank_without_evidence(tmp_path: Path) -> None:
    """Where no bundle is kept, a rank whose process a signal stopped is named by that alone."""
    incidents = Incidents()
    with (
        rank(tmp_path, "ready()", world=2) as runs,
        rank(tmp_path, "ready()", number=1, world=2) as stopped,
    ):
        ranks = [condition(each, path=tmp_path / "job" / f"{each}.blackbox") for each in range(2)]
        assert incidents.of(*ranks)["root_cause"] == []
        os.kill(stopped.pid, signal.SIGSTOP)
        named = [("job", "1", "stopped", "forward")]
        until(lambda: incidents.of(*ranks)["root_cause"] == named, "it is named")
        assert runs.poll() is None


def pages(clock: ManualClock) -> MetricsHistory:
    """Pages that say when they were taken."""
    made = MetricsHistory(clock)
    made.set_source(lambda: b"%d" % clock.now)
    return made


def test_age_of_the_page_before() -> None:
    """The page is at most about twice as old as the moment, for a stall of half a minute or of fifteen."""
    clock = ManualClock()
    kept = pages(clock)
    for _ in range(7200):
        clock.now += 1.0
        kept.keep()
    for ago in (40.0, 120.0, 300.0, 900.0):
        page = kept.before(clock.now - ago)
        assert page is not None
        assert ago < clock.now - page.moment <= 2 * ago + 2 * PAGE_INTERVAL_SECONDS
    assert len(kept._pages) <= 9


def test_oldest_page_without_an_older_one() -> None:
    clock = ManualClock()
    kept = pages(clock)
    assert kept.before(clock.now) is None
    kept.keep()
    page = kept.before(clock.now - 50.0)
    assert page is not None and page.text == b"1000"


def test_no_page_without_a_source() -> None:
    """Nor if a page is too large to keep."""
    clock = ManualClock()
    kept = MetricsHistory(clock)
    kept.keep()
    assert (kept.now(), kept.before(2000.0)) == (None, None)
    kept.set_source(lambda: bytes(MAX_PAGE_BYTES + 1))
    kept.keep()
    assert kept.before(2000.0) is None
