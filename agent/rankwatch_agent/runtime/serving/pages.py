"""What the agent answers to which path."""

from __future__ import annotations

from collections.abc import Callable
from email.message import Message
from http import HTTPStatus

from rankwatch.conventions import metric
from rankwatch_agent.runtime.export.exposition import Exposition
from rankwatch_agent.runtime.serving.access import BearerToken, with_token
from rankwatch_agent.runtime.serving.server import Page, Route, plain_page
from rankwatch_agent.runtime.supervision.snapshot import Snapshot

_EXPECTED = metric("rankwatch_gpus_expected").name
_VISIBLE = metric("rankwatch_gpus_visible").name

_INDEX = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>rankwatch agent</title></head>
<body><h1>rankwatch agent</h1><ul>
<li><a href="/metrics">/metrics</a>: text format or OpenMetrics, as asked for</li>
<li><a href="/healthz">/healthz</a>: the process answers</li>
<li><a href="/readyz">/readyz</a>: every collector has completed a first run</li>
<li><a href="/readyz/gpus">/readyz/gpus</a>: as many GPUs answer as the PCI bus has</li>
</ul></body></html>
"""


def build_routes(
    snapshot: Callable[[], Snapshot], exposition: Exposition, token: BearerToken | None = None
) -> dict[str, Route]:
    """Path -> route, for the index, the metrics and the probes.

    Index and metrics ask for the token where there is one; the probes never do, for the kubelet has none.
    """

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

    def readyz_gpus(headers: Message) -> Page:
        return gpu_readiness(snapshot())

    return {
        "/": with_token(Route(index), token),
        "/metrics": with_token(Route(metrics), token),
        "/healthz": Route(healthz, bounded=False),
        "/readyz": Route(readyz, bounded=False),
        "/readyz/gpus": Route(readyz_gpus, bounded=False),
    }


def gpu_readiness(snapshot: Snapshot) -> Page:
    """Whether NVML answers for every GPU on the PCI bus; status 503 where it does not or nobody knows.

    Apart from /readyz, which must not depend on the driver: a broken GPU would take away the pod that
    tells of it.
    """
    counts = {
        each.metric.name: each.value
        for collection in snapshot.collections
        for each in collection.series
        if each.metric.name in (_EXPECTED, _VISIBLE)
    }
    expected, visible = counts.get(_EXPECTED), counts.get(_VISIBLE)
    if expected == 0:
        return plain_page(HTTPStatus.OK, "ok: no GPUs on the PCI bus")
    if expected is None or visible is None:
        return plain_page(HTTPStatus.SERVICE_UNAVAILABLE, "unknown: GPUs have not been counted")
    if visible < expected:
        # Where NVML never answered, rankwatch_gpu_up has no series that could name them.
        more = (
            "rankwatch_gpu_up names those lost" if visible else "the agent's log says why collector gpu fails"
        )
        return plain_page(
            HTTPStatus.SERVICE_UNAVAILABLE, f"{visible:g} of {expected:g} GPUs on the PCI bus answer; {more}"
        )
    return plain_page(HTTPStatus.OK, f"ok: {visible:g} of {expected:g} GPUs answer")
