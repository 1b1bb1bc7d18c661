"""Collector `trackers`: tells MLflow about the runs of this node, so that an experiment names its incidents.

The agent sends to the one server of its settings, whatever the notes of ranks say: they only choose the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from rankwatch.conventions.vocabulary import TrackerKind, TrackerMetric, TrackerTag
from rankwatch.errors import TrackerError
from rankwatch.trackers.telling import MlflowServer, run_tags, step_metrics
from rankwatch_agent.incidents.episodes import IncidentRegistry
from rankwatch_agent.runtime.collector import Collection, Schedule, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import NotApplicable, UserError
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.reread import Reread, parse_headers
from rankwatch_agent.runtime.turns import Turns
from rankwatch_agent.training.tracked_runs import Figures, TrackedRun, TrackedRuns

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
LEAST_SECONDS = 60.0 * len(TrackerMetric) / 10.0
"""Between two points of a run's metrics, whatever the interval: no more than ten values a minute."""
PASS_SECONDS = 12.0
"""For all runs of one pass. Those that it does not reach are the first of the next one."""


class TrackersCollector:
    """Sends each tracked run's tags and metrics once in each pass, if there is news.

    endpoint: of the MLflow server; empty sends nothing. headers: returns those of each request.
    grafana: address for links to dashboards; empty leaves them out.
    """

    name = "trackers"

    def __init__(
        self,
        *,
        runs: TrackedRuns,
        registry: IncidentRegistry,
        endpoint: str,
        headers: Callable[[], Mapping[str, str]],
        grafana: str,
        schedule: Schedule,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._runs = runs
        self._registry = registry
        self._endpoint = endpoint
        self._headers = headers
        self._grafana = grafana
        self._monotonic = monotonic
        self._wall = wall
        self._outcomes = {"success": 0, "failure": 0}
        """Of requests."""
        self._sent: dict[str, tuple[Figures, Mapping[str, str]]] = {}
        """Run -> what was sent last."""
        self._incidents: dict[str, str] = {}
        """Run -> its last incident, as the tag says it."""
        self._log_limit = LogLimit(monotonic)

    def collect(self) -> Collection:
        """Raise NotApplicable where no server is set."""
        if not self._endpoint:
            raise NotApplicable("mlflow_endpoint is empty")
        tracked = {run: each for run, each in self._runs.runs.items() if self._mlflow_run(each)}
        self._sent = {run: sent for run, sent in self._sent.items() if run in tracked}
        self._note_incidents(tracked)
        waiting = sorted(tracked.values(), key=self._last_sent)
        for each in Turns(waiting, owner=lambda each: each.owner, spent=self._monotonic, most=PASS_SECONDS):
            self._send(each)
        series = [
            sample("rankwatch_tracker_requests_total", (outcome,), count)
            for outcome, count in self._outcomes.items()
        ]
        return Collection(series=series)

    def _last_sent(self, tracked: TrackedRun) -> float:
        sent = self._sent.get(tracked.run)
        return float("-inf") if sent is None else sent[0].moment

    def _mlflow_run(self, tracked: TrackedRun) -> str:
        """Return the run's id in the server of the settings; empty where it has none there."""
        wanted = _address(self._endpoint)
        for each in tracked.trackers:
            if each.kind is TrackerKind.MLFLOW and _address(each.endpoint) == wanted:
                return each.run
        return ""

    def _note_incidents(self, tracked: Mapping[str, TrackedRun]) -> None:
        self._incidents = {run: text for run, text in self._incidents.items() if run in tracked}
        for run, incident in self._registry.open.items():
            if run not in tracked:
                continue
            opened = datetime.fromtimestamp(self._wall() - self._monotonic() + incident.opened, UTC)
            result = self._registry.result(incident)
            causes = () if result is None else result.root_causes
            named = ", ".join(f"rank {each.rank} ({each.state})" for each in causes)
            text = f"{incident.kind.value} at {opened:%Y-%m-%dT%H:%M:%SZ}"
            self._incidents[run] = f"{text}: {named}" if named else text

    def _send(self, tracked: TrackedRun) -> None:
        before, told = self._sent.get(tracked.run, (None, {}))
        tags = run_tags(tracked.run, self._grafana, tracked.figures.goodput)
        if tracked.run in self._incidents:
            tags[TrackerTag.LAST_INCIDENT.value] = self._incidents[tracked.run]
        early = before is not None and tracked.figures.moment - before.moment < LEAST_SECONDS
        metrics = {} if early else metrics_since(before, tracked.figures)
        if not metrics and tags == told:
            return
        server = MlflowServer(self._endpoint, headers=self._headers(), timeout_seconds=REQUEST_SECONDS)
        try:
            run, step = self._mlflow_run(tracked), tracked.figures.last_step
            server.log_batch(run, tags=tags, metrics=metrics, step=step)
            self._outcomes["success"] += 1
        except TrackerError as error:
            self._outcomes["failure"] += 1
            if self._log_limit.allows(str(error)):
                logger.warning("run %s is not told to its tracker: %s", tracked.run, error)
        # Also after a failure: what was not taken is not worth a queue.
        self._sent[tracked.run] = (before if before is not None and early else tracked.figures, tags)


def metrics_since(before: Figures | None, now: Figures) -> dict[str, float]:
    """Return the metrics since `before`, or since the start; none where no step has ended in that time."""
    before = before or Figures(now.moment - now.running_seconds, 0.0, -1, 0, 0.0, 0.0, 0.0, 0)
    steps, passed = now.steps - before.steps, now.moment - before.moment
    seconds = now.seconds - before.seconds
    if steps <= 0 or seconds <= 0.0 or passed <= 0.0 or now.goodput is None:
        return {}
    data_wait = now.data_wait_seconds - before.data_wait_seconds
    communication = now.communication_seconds - before.communication_seconds
    return {
        **step_metrics(now.goodput, steps, seconds, passed),
        TrackerMetric.DATA_WAIT_SHARE.value: data_wait / seconds,
        TrackerMetric.COMMUNICATION_SHARE.value: communication / seconds,
        TrackerMetric.LATE_STEPS.value: float(now.late_steps),
    }


def build_trackers(
    config: AgentConfig, *, runs: TrackedRuns, registry: IncidentRegistry
) -> TrackersCollector:
    """Return the collector that the settings describe. Raises UserError for an unusable headers file."""
    return TrackersCollector(
        runs=runs,
        registry=registry,
        endpoint=config.mlflow_endpoint,
        headers=_headers(config.mlflow_headers_file),
        grafana=config.dashboard_url,
        schedule=config.schedule(TrackersCollector.name),
    )


def _headers(path: Path | None) -> Callable[[], Mapping[str, str]]:
    if path is None:
        return dict
    return Reread([path], lambda: _load_headers(path)).current


def _load_headers(path: Path) -> dict[str, str]:
    try:
        return parse_headers(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"could not use mlflow_headers_file {path}: {reason}") from None


def _address(endpoint: str) -> tuple[str, str, str]:
    parts = urlsplit(endpoint)
    return parts.scheme, parts.netloc.rpartition("@")[2].lower(), parts.path.rstrip("/")
