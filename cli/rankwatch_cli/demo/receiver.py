"""Receives what Alertmanager sends: the last station of the way from the rank to a human."""

from __future__ import annotations

import json
import queue
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One alert as Alertmanager delivered it."""

    name: str
    firing: bool
    labels: dict[str, str]
    annotations: dict[str, str]
    received_at: float
    """Monotonic time of its arrival."""


class Receiver:
    """A webhook on a free loopback port, as long as the `with` block runs."""

    def __init__(self) -> None:
        self.alerts: queue.Queue[Alert] = queue.Queue()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where Alertmanager is to send."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        alerts = self.alerts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = min(int(self.headers.get("Content-Length", 0)), _MAX_BYTES)
                for each in json.loads(self.rfile.read(size)).get("alerts", ()):
                    alerts.put(_alert(each))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing on the demo's terminal."""

        return Handler


def _alert(sent: dict[str, Any]) -> Alert:
    labels = {str(name): str(value) for name, value in sent["labels"].items()}
    return Alert(
        name=labels.get("alertname", ""),
        firing=sent.get("status") == "firing",
        labels=labels,
        annotations={str(name): str(value) for name, value in sent.get("annotations", {}).items()},
        received_at=time.monotonic(),
    )
