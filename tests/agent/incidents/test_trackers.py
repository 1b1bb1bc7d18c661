"""The agent tells MLflow about runs: their last incident, goodput and a few metrics, within bounds."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from rankwatch.conventions.states import IncidentKind
from rankwatch.conventions.vocabulary import TrackerKind, TrackerMetric
from rankwatch.trackers.finding import Tracker
from rankwatch_agent.incidents import trackers
from rankwatch_agent.incidents.episodes import EvidenceResult, IncidentRegistry, RootCause
from rankwatch_agent.incidents.trackers import TrackersCollector, build_trackers, metrics_since
from rankwatch_agent.runtime.collector import Collection, Schedule
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import NotApplicable, UserError
from rankwatch_agent.training.tracked_runs import Figures, TrackedRun, TrackedRuns
from support.incidents.incidents import condition, incident
from support.trackers.mlflow import stand_in
from support.training.ranks import values

RUN_ID = "0123456789abcdef0123456789abcdef"


def figures(moment: float, steps: int) -> Figures:
    """Of a run with steps of 2 s, of which a quarter is data wait and a tenth communication."""
    return Figures(moment, moment, steps - 1, steps, 2.0 * steps, 0.5 * steps, 0.2 * steps, 1)


class Tracked(TrackedRuns):
    """Runs as a test says."""

    def set(self, endpoint: str, state: Figures, *runs: str) -> None:
        tracker = Tracker(TrackerKind.MLFLOW, RUN_ID, "", endpoint)
        self._runs = MappingProxyType({run: TrackedRun(run, 0, (tracker,), state) for run in runs})


class Server:
    """Answers as told and keeps what it was sent."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.sent: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        self.headers = dict(request.headers)
        self.sent.append(json.loads(request.body))  # type: ignore[attr-defined]
        request.send_response(self.status)
        request.send_header("Content-Length", "0")
        request.end_headers()


def collector(
    runs: TrackedRuns, endpoint: str, registry: IncidentRegistry | None = None
) -> TrackersCollector:
    return TrackersCollector(
        runs=runs,
        registry=registry or IncidentRegistry(),
        endpoint=endpoint,
        headers=lambda: {"Authorization": "Bearer x"},
        grafana="https://grafana.example",
        schedule=Schedule(60.0, 20.0),
        monotonic=lambda: 1000.0,
        wall=lambda: 1_700_000_000.0,
    )


def requests(found: Collection) -> tuple[float, float]:
    """Those that succeeded and those that failed."""
    counted = values(found, "rankwatch_tracker_requests_total")
    return counted["success",], counted["failure",]


def tags(sent: dict[str, Any]) -> dict[str, str]:
    return {each["key"]: each["value"] for each in sent["tags"]}


def test_news_of_a_run() -> None:
    """Tags and at most ten metrics at the last step, once a pass; nothing where nothing has happened."""
    server, runs = Server(), Tracked()
    with stand_in(server) as endpoint:
        made = collector(runs, endpoint)
        runs.set(f"{endpoint}/", figures(100.0, 40), "job")
        made.collect()
        made.collect()
        runs.set(endpoint, figures(160.0, 70), "job")
        found = made.collect()
    first, second = server.sent
    assert first["run_id"] == RUN_ID
    assert tags(first) == {
        "rankwatch.run": "job",
        "rankwatch.dashboard_url": "https://grafana.example/d/rankwatch-run-debug?var-run=job",
        "rankwatch.goodput": "0.800",
    }
    assert {each["key"]: each["value"] for each in second["metrics"]} == {
        "rankwatch/goodput": 0.875,
        "rankwatch/step_seconds": 2.0,
        "rankwatch/steps_per_second": 0.5,
        "rankwatch/data_wait_share": 0.25,
        "rankwatch/communication_share": pytest.approx(0.1),
        "rankwatch/late_steps": 1.0,
    }
    assert {each["step"] for each in second["metrics"]} == {69}
    assert server.headers["Authorization"] == "Bearer x"
    assert requests(found) == (2, 0)
    assert len(TrackerMetric) <= 10


def test_short_interval() -> None:
    """However often the collector runs, a run gets at most ten values a minute."""
    server, runs = Server(), Tracked()
    with stand_in(server) as endpoint:
        made = collector(runs, endpoint)
        for moment in range(100, 221, 5):
            runs.set(endpoint, figures(float(moment), moment // 5), "job")
            made.collect()
    values_sent = sum(len(each["metrics"]) for each in server.sent)
    assert 0 < values_sent <= 2 * 10 + len(TrackerMetric)


def test_last_incident() -> None:
    """It is a tag, with the ranks that the evidence names, and stays after the incident has ended."""
    server, runs, registry = Server(), Tracked(), IncidentRegistry()
    opened = incident([condition()], kind=IncidentKind.STALL, moment=940.0)
    with stand_in(server) as endpoint:
        made = collector(runs, endpoint, registry)
        runs.set(endpoint, figures(100.0, 40), "job")
        registry.update({"job": opened}, [opened])
        made.collect()
        registry.set_result(opened, EvidenceResult(Path("bundle"), (RootCause(1, "hang", "forward"),)))
        made.collect()
        registry.update({}, [])
        runs.set(endpoint, figures(160.0, 70), "job")
        made.collect()
    texts = [tags(each)["rankwatch.last_incident"] for each in server.sent]
    assert texts == ["stall at 2023-11-14T22:12:20Z", *["stall at 2023-11-14T22:12:20Z: rank 1 (hang)"] * 2]


def test_only_the_server_of_the_settings() -> None:
    """What a rank notes down cannot send the agent, or its credentials, to another server."""
    server, runs = Server(), Tracked()
    with stand_in(server) as elsewhere:
        runs.set(elsewhere, figures(100.0, 40), "job")
        assert requests(collector(runs, "http://127.0.0.1:1").collect()) == (0, 0)
    assert server.sent == []


@pytest.mark.parametrize("status", [404, 500, 302])
def test_refused(status: int) -> None:
    """It is counted and not repeated until there is news."""
    server, runs = Server(status), Tracked()
    with stand_in(server) as endpoint:
        runs.set(endpoint, figures(100.0, 40), "job")
        made = collector(runs, endpoint)
        made.collect()
        assert requests(made.collect()) == (0, 1)
    assert len(server.sent) == 1


def test_dead_server() -> None:
    """Nobody listens: each run fails at once, and the collector goes on."""
    runs = Tracked()
    runs.set("http://127.0.0.1:1", figures(100.0, 40), "one", "two")
    assert requests(collector(runs, "http://127.0.0.1:1").collect()) == (0, 2)


def test_slow_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass ends after its time, however many runs there are; the next one begins with those left out."""
    monkeypatch.setattr(trackers, "REQUEST_SECONDS", 0.2)
    clock = iter(range(0, 100_000, 7))  # each look at the clock is 7 s later
    runs = Tracked()

    def silent(request: BaseHTTPRequestHandler) -> None:
        request.connection.settimeout(30)
        request.connection.recv(1)

    with stand_in(silent) as endpoint:
        runs.set(endpoint, figures(100.0, 40), *(f"run-{number}" for number in range(6)))
        made = collector(runs, endpoint)
        made._monotonic = lambda: float(next(clock))
        assert requests(made.collect())[1] < 6
        before = len(made._sent)
        made.collect()
    assert len(made._sent) > before


def test_settings(tmp_path: Path) -> None:
    """Without a server there is nothing to do; a headers file that cannot be used is named."""
    made = build_trackers(AgentConfig(), runs=TrackedRuns(), registry=IncidentRegistry())
    with pytest.raises(NotApplicable, match="mlflow_endpoint is empty"):
        made.collect()
    config = AgentConfig(mlflow_endpoint="http://m", mlflow_headers_file=tmp_path / "none")
    with pytest.raises(UserError, match=r"could not use mlflow_headers_file .*: No such file"):
        build_trackers(config, runs=TrackedRuns(), registry=IncidentRegistry())


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (None, figures(10.0, 0)),
        (figures(10.0, 5), figures(70.0, 5)),
        (figures(10.0, 50), figures(70.0, 5)),
        (figures(10.0, 5), figures(70.0, 50)._replace(running_seconds=0.0)),
    ],
    ids=["begins", "no steps", "counted anew after a restart of the agent", "a box that begins tomorrow"],
)
def test_metrics_without_steps(before: Figures | None, now: Figures) -> None:
    """A run that makes none has no rates, and none of a time before is invented."""
    assert metrics_since(before, now) == {}
