"""MLflow's REST interface, as far as a run needs it: tags and metrics, in one request with a deadline."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping
from http.client import OK, HTTPException
from urllib.parse import urlsplit

from rankwatch.errors import TrackerError
from rankwatch.untrusted.http_client import ask

_PATH = "/api/2.0/mlflow/runs/log-batch"
_RUN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_TAG = 5000
"""Characters of a tag's value, which MLflow keeps."""
_MOST_READ = 1 << 20
"""Bytes of an answer. It is empty, or tells an error."""


class MlflowServer:
    """A server at an address. timeout_seconds: for a whole request, however slowly the server answers."""

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
