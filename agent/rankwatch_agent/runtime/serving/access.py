"""Who may read the metrics: the bearer token, and a warning where there is no bar at all."""

from __future__ import annotations

import hmac
from email.message import Message
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path

from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.reread import Reread
from rankwatch_agent.runtime.serving.server import Page, Route, join_address, plain_page

BearerToken = Reread[bytes]
"""The token in force; another one after its file has changed."""


def build_token(path: Path | None) -> BearerToken | None:
    """The token in the file; None without a file. Raises UserError where it holds none."""
    return None if path is None else Reread([path], lambda: load_token(path))


def load_token(path: Path) -> bytes:
    """The token, without the newline at its end; raises UserError, which never shows the content."""
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
    """The route for those who know the token; the others get status 401. Without a token, for all."""
    if token is None:
        return route

    def answer(headers: Message) -> Page:
        return route.answer(headers) if _knows(headers, token.current()) else _refusal()

    return route._replace(answer=answer)


def warning_if_open(host: str, port: int, *, guarded: bool) -> str | None:
    """A sentence where the server, bound to this address, is open to every machine that reaches it.

    `guarded` says that there is TLS or a token; `host` is the address that the socket is bound to.
    """
    if guarded or not ip_address(host).is_unspecified:
        return None
    return (
        f"/metrics is open to whoever reaches {join_address(host, port)}, without TLS or a token: set "
        "tls_certificate or bearer_token_file, or listen on one address such as 127.0.0.1"
    )


def _knows(headers: Message, token: bytes) -> bool:
    scheme, _, given = str(headers.get("Authorization", "")).partition(" ")
    # compare_digest takes as long for a wrong token that begins right as for any other.
    same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token)
    return same and scheme.lower() == "bearer"


def _refusal() -> Page:
    page = plain_page(HTTPStatus.UNAUTHORIZED, "this page asks for a bearer token")
    return page._replace(headers={**page.headers, "WWW-Authenticate": 'Bearer realm="rankwatch"'})
