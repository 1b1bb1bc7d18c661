"""The pages of the agent: metrics, probes, and who may read them."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from email.message import Message
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path

from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.exposition import Exposition
from rankwatch_agent.runtime.reread import Reread
from rankwatch_agent.runtime.server import Page, Route, join_address, plain_page
from rankwatch_agent.runtime.supervisor import Snapshot

_EXPECTED = "rankwatch_gpus_expected"
_VISIBLE = "rankwatch_gpus_visible"

_INDEX = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>rankwatch agent</title></head>
<body><h1>rankwatch agent</h1><ul>
<li><a href="/metrics">/metrics</a>: text format or OpenMetrics, as asked for</li>
<li><a href="/healthz">/healthz</a>: the process answers</li>
<li><a href="/readyz">/readyz</a>: every collector has completed a first run</li>
<li><a href="/readyz/gpus">/readyz/gpus</a>: as many GPUs answer as the PCI bus has</li>
</ul></body></html>
"""

BearerToken = Reread[bytes]
"""The token in force; a new one after its file has changed."""


def build_routes(
    snapshot: Callable[[], Snapshot], exposition: Exposition, token: BearerToken | None = None
) -> dict[str, Route]:
    """Return path -> route, for the index, the metrics and the probes.

    Index and metrics require the token, if there is one. The probes never do: the kubelet has no token.
    """

    def index(headers: Message) -> Page:
        return Page(HTTPStatus.OK, _INDEX, {"Content-Type": "text/html; charset=utf-8"})

    return {
        "/": with_token(Route(index), token),
        "/metrics": with_token(Route(partial(exposition.serve, snapshot)), token),
        **build_probes(snapshot),
    }


def build_probes(snapshot: Callable[[], Snapshot]) -> dict[str, Route]:
    """Return path -> route, for the probes alone."""

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
        "/healthz": Route(healthz, bounded=False),
        "/readyz": Route(readyz, bounded=False),
        "/readyz/gpus": Route(readyz_gpus, bounded=False),
    }


def gpu_readiness(snapshot: Snapshot) -> Page:
    """Answer with status 200 if NVML reports every GPU on the PCI bus, else 503.

    Not part of /readyz, which must not depend on the driver: a broken GPU would take down the pod that
    reports it.
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
        # If NVML never answered, rankwatch_gpu_up has no series that could name the GPUs.
        more = (
            "rankwatch_gpu_up names those lost" if visible else "the agent's log says why collector gpu fails"
        )
        return plain_page(
            HTTPStatus.SERVICE_UNAVAILABLE, f"{visible:g} of {expected:g} GPUs on the PCI bus answer; {more}"
        )
    return plain_page(HTTPStatus.OK, f"ok: {visible:g} of {expected:g} GPUs answer")


def build_token(path: Path | None) -> BearerToken | None:
    """Return the token in the file; None without a file. Raises UserError."""
    return None if path is None else Reread([path], lambda: load_token(path))


def load_token(path: Path) -> bytes:
    """Return the token in the file, without white space around it. Raises UserError that does not show it."""
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise UserError(f"could not read bearer_token_file {path}: {error.strerror or error}") from None
    if not token:
        raise UserError(f"could not use bearer_token_file {path}: it is empty")
    if not all(0x21 <= byte <= 0x7E for byte in token):
        raise UserError(f"could not use bearer_token_file {path}: expected one word of printable ASCII")
    return token


def with_token(route: Route, token: BearerToken | None) -> Route:
    """Return the route, with status 401 for a request without the token. None leaves the route open."""
    if token is None:
        return route

    def answer(headers: Message) -> Page:
        return route.answer(headers) if _has_token(headers, token.current()) else _refusal()

    return route._replace(answer=answer)


def warning_if_open(host: str, port: int, *, guarded: bool) -> str | None:
    """Return a warning if every machine that reaches the server can read the metrics, else None.

    host: the address the socket is bound to. guarded: True with TLS or a token.
    """
    if guarded or not ip_address(host).is_unspecified:
        return None
    return (
        f"/metrics is open to everyone who reaches {join_address(host, port)}, without TLS or a token: set "
        "tls_certificate or bearer_token_file, or listen on one address such as 127.0.0.1"
    )


def _has_token(headers: Message, token: bytes) -> bool:
    scheme, _, given = str(headers.get("Authorization", "")).partition(" ")
    # compare_digest takes the same time for every wrong token, also one that begins right.
    same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token)
    return same and scheme.lower() == "bearer"


def _refusal() -> Page:
    page = plain_page(HTTPStatus.UNAUTHORIZED, "this page requires a bearer token")
    return page._replace(headers={**page.headers, "WWW-Authenticate": 'Bearer realm="rankwatch"'})
