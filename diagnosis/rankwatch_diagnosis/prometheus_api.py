"""Questions to a Prometheus, with a deadline, and its answers as plain values."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from rankwatch_agent.runtime.connect import within
from rankwatch_agent.runtime.errors import UserError

_MOST_BYTES = 64 << 20
_REFUSED = {
    401: "it asks for credentials",
    403: "it refuses these credentials",
    404: "there is no Prometheus API below this URL",
}


def quoted(text: str) -> str:
    """A string of PromQL."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


class Sample(NamedTuple):
    """A series at one moment."""

    labels: Mapping[str, str]
    value: float


class Points(NamedTuple):
    """A series over time: (Unix time, value), oldest first."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class PrometheusApi:
    """A server that speaks Prometheus's API: Prometheus itself, Thanos, Mimir, VictoriaMetrics.

    Raises UserError for an address that is none, and from its methods, in one sentence without credentials,
    where the server cannot be reached, is too slow, refuses, or answers with something else.
    """

    url: str
    """Its root; USER:PASSWORD@ in it is sent as basic authentication."""
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        try:
            parts = urllib.parse.urlsplit(self.url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port or an IPv6 address that is none
            usable = False
        if not usable or not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise UserError("--prometheus is no URL such as http://prometheus:9090")

    def query(self, expression: str) -> list[Sample]:
        """The series of an expression now."""
        rows = self._ask("query", {"query": expression})
        return [Sample(row["metric"], float(row["value"][1])) for row in rows]

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Points]:
        """The series of an expression from `start` to `end`, every `step` seconds."""
        asked = {"query": expression, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return [
            Points(row["metric"], tuple((float(at), float(value)) for at, value in row["values"]))
            for row in self._ask("query_range", asked)
        ]

    @property
    def address(self) -> str:
        """The URL without credentials."""
        parts = urllib.parse.urlsplit(self.url)
        return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")

    def _ask(self, endpoint: str, parameters: Mapping[str, str]) -> list[Any]:
        body = urllib.parse.urlencode(parameters).encode()  # as a form: an expression may be long
        request = urllib.request.Request(f"{self.address}/api/v1/{endpoint}", body, self._headers())

        def ask() -> bytes:
            opener = urllib.request.build_opener(_NoRedirects)
            with opener.open(request, timeout=self.timeout_seconds) as reply:
                text: bytes = reply.read(_MOST_BYTES + 1)
            return text

        try:
            text = within(self.timeout_seconds, ask)
        except urllib.error.HTTPError as error:
            with error:
                raise self._failure(_reason(error)) from None
        except TimeoutError:
            raise self._failure(f"no answer within {self.timeout_seconds:g} s") from None
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            raise self._failure(str(getattr(error, "reason", "") or error)) from None
        if len(text) > _MOST_BYTES:
            raise self._failure(f"its answer is larger than {_MOST_BYTES >> 20} MiB")
        return self._result(text)

    def _result(self, text: bytes) -> list[Any]:
        try:
            rows = json.loads(text)["data"]["result"]
            if all(
                isinstance(each["metric"], dict) and (each.get("value") or each["values"]) for each in rows
            ):
                return list(rows)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        raise self._failure("its answer is not that of a Prometheus")

    def _headers(self) -> dict[str, str]:
        parts = urllib.parse.urlsplit(self.url)
        found = dict(self.headers)
        if parts.username is not None:
            words = (urllib.parse.unquote(each or "") for each in (parts.username, parts.password))
            found["Authorization"] = "Basic " + base64.b64encode(":".join(words).encode()).decode()
        return found

    def _failure(self, reason: str) -> UserError:
        return UserError(f"could not ask Prometheus at {self.address}: {reason}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect, mostly to a page for people to log in, would take the credentials elsewhere."""

    def redirect_request(self, *_: object) -> None:
        """None: the status is an error."""


def _reason(error: urllib.error.HTTPError) -> str:
    if error.code in _REFUSED:
        return f"{_REFUSED[error.code]} (status {error.code})"
    if 300 <= error.code < 400:
        return f"it sends to another page, as for a login (status {error.code})"
    try:
        told = json.loads(error.read(1 << 16))["error"]
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        told = error.reason
    return f"{str(told)[:300]} (status {error.code})"
