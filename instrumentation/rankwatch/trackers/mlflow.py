"""MLflow's REST interface, as far as a run needs it: tags and metrics, in one request with a deadline."""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from rankwatch.errors import TrackerError

_PATH = "/api/2.0/mlflow/runs/log-batch"
_RUN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_TAG = 5000
"""Characters of a tag's value, which MLflow keeps."""
_MOST_READ = 65_536
"""Bytes of an answer that are looked at."""


class MlflowServer:
    """A server at an address. timeout_seconds: for a whole request, however slowly the server answers."""

    def __init__(self, endpoint: str, *, headers: Mapping[str, str], timeout_seconds: float) -> None:
        self._endpoint = urlsplit(endpoint)
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
            status, text = self._post(json.dumps(content, allow_nan=False).encode())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TrackerError(
                f"MLflow at {self._endpoint.netloc}: {error or type(error).__name__}"
            ) from None
        if status != http.client.OK:
            raise TrackerError(f"MLflow at {self._endpoint.netloc}: status {status}: {text[:200]!r}")

    def _post(self, body: bytes) -> tuple[int, str]:
        secure = self._endpoint.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        host, port = self._endpoint.hostname or "", self._endpoint.port
        connection = kind(host, port, timeout=self._timeout_seconds)
        # The timeout of a socket is that of one read: a server that sends a byte a second never meets it.
        late = threading.Timer(self._timeout_seconds, _cut, (connection,))
        late.daemon = True
        late.start()
        try:
            connection.request("POST", self._endpoint.path.rstrip("/") + _PATH, body, self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_MOST_READ).decode("utf-8", "replace")
        finally:
            late.cancel()
            connection.close()


def _cut(connection: http.client.HTTPConnection) -> None:
    sock = connection.sock
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def credentials(env: Mapping[str, str]) -> dict[str, str]:
    """The header that MLflow's own client would send by these variables."""
    user, password = env.get("MLFLOW_TRACKING_USERNAME"), env.get("MLFLOW_TRACKING_PASSWORD")
    if user and password:
        return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
    token = env.get("MLFLOW_TRACKING_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}
