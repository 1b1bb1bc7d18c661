"""The HTTP session that carries exports: it trusts neither the length of an answer nor a redirect."""

from __future__ import annotations

from typing import Any

import requests


def build_session() -> requests.Session:
    """A session for OpenTelemetry's exporter; proxies come from the environment, credentials do not."""
    session = requests.Session()
    # Nobody reads the body of an answer: it is neither waited for nor kept, whatever its length.
    session.stream = True
    session.hooks["response"].append(_end_answer)
    # Else a ~/.netrc would replace the Authorization of the headers file.
    session.auth = _same_request
    return session


def _end_answer(response: requests.Response, **_: Any) -> None:
    """Close the connection; raises HTTPError for a redirect, which the exporter takes for success."""
    response.close()
    if 300 <= response.status_code < 400:
        raise requests.HTTPError(f"status {response.status_code} leads elsewhere; give the final URL")


def _same_request(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request
