"""What trackers are told of a run, by rank 0 at its exit and by the agent while it goes on, and how."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping
from http.client import OK, HTTPException
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from rankwatch.conventions.vocabulary import DASHBOARD_PATH, TrackerKind, TrackerMetric, TrackerTag
from rankwatch.errors import TrackerError
from rankwatch.trackers.finding import Found
from rankwatch.untrusted.http_client import ask

_PATH = "/api/2.0/mlflow/runs/log-batch"
_RUN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_TAG = 5000
"""Characters of a tag's value, which MLflow keeps."""
_MOST_READ = 1 << 20
"""Bytes of an answer. It is empty, or tells an error."""


class Facts(NamedTuple):
    """What a tracker is told at the end."""

    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    """At most ten."""
    step: int
    """Of the metrics; the last one, -1 before the first."""


def dashboard_url(grafana: str, run: str) -> str:
    """Return the page of a run in the Grafana at this address."""
    return grafana.rstrip("/") + DASHBOARD_PATH.format(run=quote(run, safe=""))


def run_tags(run: str, grafana: str, goodput: float | None) -> dict[str, str]:
    """Return the tags that rank 0 gives at its exit, and the agent while the run goes on.

    grafana: address for the link to the dashboard; empty leaves it out. goodput: None before the first step.
    """
    tags = {TrackerTag.RUN.value: run}
    if grafana:
        tags[TrackerTag.DASHBOARD_URL.value] = dashboard_url(grafana, run)
    if goodput is not None:
        tags[TrackerTag.GOODPUT.value] = f"{goodput:.3f}"
    return tags


def step_metrics(goodput: float, steps: int, step_seconds: float, passed: float) -> dict[str, float]:
    """Return the metrics of so many steps, which took `step_seconds` of the seconds that have passed."""
    return {
        TrackerMetric.GOODPUT.value: goodput,
        TrackerMetric.STEP_SECONDS.value: step_seconds / steps,
        TrackerMetric.STEPS_PER_SECOND.value: steps / passed,
    }


def tell(found: Found, facts: Facts, env: Mapping[str, str], *, timeout_seconds: float) -> None:
    """Give one tracker tags and metrics, the way it has them. Raises whatever it raises."""
    tracker, handle = found
    step = max(0, facts.step)
    match tracker.kind:
        case TrackerKind.MLFLOW if tracker.endpoint:
            server = MlflowServer(tracker.endpoint, headers=credentials(env), timeout_seconds=timeout_seconds)
            server.log_batch(tracker.run, tags=facts.tags, metrics=facts.metrics, step=step)
        case TrackerKind.MLFLOW if handle is not None:  # files or a database: only its library can write them
            client = handle.MlflowClient()
            for name, value in facts.metrics.items():
                client.log_metric(tracker.run, name, value, step=step)
            for name, text in facts.tags.items():
                client.set_tag(tracker.run, name, text)
        case TrackerKind.WANDB:
            handle.config.update(dict(facts.tags), allow_val_change=True)
            handle.summary.update(dict(facts.metrics))
        case TrackerKind.TRACKIO:
            handle.log({**facts.tags, **facts.metrics})
        case TrackerKind.TENSORBOARD:
            for name, text in facts.tags.items():
                handle.add_text(name, text, step)
            for name, value in facts.metrics.items():
                handle.add_scalar(name, value, step)
            handle.flush()


class MlflowServer:
    """MLflow's REST interface, as far as a run needs it: tags and metrics, in one request with a deadline.

    timeout_seconds: for a whole request, however slowly the server answers.
    """

    def __init__(self, endpoint: str, *, headers: Mapping[str, str], timeout_seconds: float) -> None:
        parts = urlsplit(endpoint)
        self._place = parts.netloc
        self._url = parts._replace(path=parts.path.rstrip("/") + _PATH, query="", fragment="").geturl()
        self._headers = {"Content-Type": "application/json", **headers}
        self._timeout_seconds = timeout_seconds

    def log_batch(
        self, run: str, *, tags: Mapping[str, str], metrics: Mapping[str, float], step: int
    ) -> None:
        """Set tags and add a point to each metric. Raises TrackerError."""
        if not _RUN.fullmatch(run):
            raise TrackerError(f"{run!r:.100} is no id of a run of MLflow")
        now = int(time.time() * 1000)
        content = {
            "run_id": run,
            "metrics": [
                {"key": name, "value": value, "timestamp": now, "step": max(0, step)}
                for name, value in metrics.items()
            ],
            "tags": [{"key": name, "value": value[:_LONGEST_TAG]} for name, value in tags.items()],
        }
        try:
            reply = ask(
                self._url,
                seconds=self._timeout_seconds,
                most_bytes=_MOST_READ,
                method="POST",
                headers=self._headers,
                body=json.dumps(content, allow_nan=False).encode(),
            )
        except (OSError, HTTPException, ValueError) as error:
            raise TrackerError(f"MLflow at {self._place}: {error or type(error).__name__}") from None
        if reply.status != OK:
            text = reply.body.decode("utf-8", "replace")
            raise TrackerError(f"MLflow at {self._place}: status {reply.status}: {text[:200]!r}")


def credentials(env: Mapping[str, str]) -> dict[str, str]:
    """Return the header that MLflow's own client would send by these variables."""
    user, password = env.get("MLFLOW_TRACKING_USERNAME"), env.get("MLFLOW_TRACKING_PASSWORD")
    if user and password:
        return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
    token = env.get("MLFLOW_TRACKING_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}
