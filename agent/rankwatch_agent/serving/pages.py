"""What the agent answers to which path."""

from __future__ import annotations

from collections.abc import Callable
from email.message import Message
from http import HTTPStatus

from rankwatch_agent.export.exposition import Exposition
from rankwatch_agent.serving.server import Page, Route, plain_page
from rankwatch_agent.supervision.snapshot import Snapshot

_INDEX = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>rankwatch agent</title></head>
<body><h1>rankwatch agent</h1><ul>
<li><a href="/metrics">/metrics</a>: text format or OpenMetrics, as asked for</li>
<li><a href="/healthz">/healthz</a>: the process answers</li>
<li><a href="/readyz">/readyz</a>: every collector has completed a first run</li>
</ul></body></html>
"""


def build_routes(snapshot: Callable[[], Snapshot], exposition: Exposition) -> dict[str, Route]:
    """Path -> route, for the index, the metrics and the two probes."""

    def index(headers: Message) -> Page:
        return Page(HTTPStatus.OK, _INDEX, {"Content-Type": "text/html; charset=utf-8"})

    def metrics(headers: Message) -> Page:
        reply = exposition.render(
            snapshot(),
            accept=headers.get("Accept", ""),
            accept_encoding=headers.get("Accept-Encoding", ""),
        )
        return Page(HTTPStatus.OK, reply.body, reply.headers)

    def healthz(headers: Message) -> Page:
        return plain_page(HTTPStatus.OK, "ok")

    def readyz(headers: Message) -> Page:
        pending = snapshot().pending
        if pending:
            waiting = f"waiting for the first run of: {', '.join(pending)}"
            return plain_page(HTTPStatus.SERVICE_UNAVAILABLE, waiting)
        return plain_page(HTTPStatus.OK, "ok")

    return {
        "/": Route(index),
        "/metrics": Route(metrics),
        "/healthz": Route(healthz, bounded=False),
        "/readyz": Route(readyz, bounded=False),
    }
