"""Questions to a Prometheus, with a deadline, and its answers as plain values."""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from types import MappingProxyType
from typing import Any, NamedTuple

from rankwatch.untrusted.http_client import Reply, ask_by_proxies
from rankwatch_agent.runtime.errors import UserError

_MOST_BYTES = 64 << 20
LATEST = 1e11
"""Unix time in the year 5138."""
_MOST_DIGITS = 9
"""Of a rank or an attempt."""
_REFUSED = {
    401: "it asks for credentials",
    403: "it refuses these credentials",
    404: "there is no Prometheus API below this URL",
}


def quoted(text: str) -> str:
    """Return a string of PromQL."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def whole(text: str) -> int | None:
    """Return the number in a label, such as that of a rank; None for another text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


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
        """Return the series of an expression now."""
        found = self._ask("query", {"query": expression})
        return [Sample(labels, points[0][1]) for labels, points in found]

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Points]:
        """Return the series of an expression from `start` to `end`, every `step` seconds."""
        asked = {"query": expression, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return self._ask("query_range", asked)

    @property
    def address(self) -> str:
        """The URL without credentials."""
        parts = urllib.parse.urlsplit(self.url)
        return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")

    def _ask(self, endpoint: str, parameters: Mapping[str, str]) -> list[Points]:
        body = urllib.parse.urlencode(parameters).encode()  # as a form: an expression may be long
        url = f"{self.address}/api/v1/{endpoint}"
        seconds = self.timeout_seconds
        try:
            parts = urllib.parse.urlsplit(self.url)
            found = dict(self.headers)
            if parts.username is not None:
                words = (urllib.parse.unquote(each or "") for each in (parts.username, parts.password))
                found["Authorization"] = "Basic " + base64.b64encode(":".join(words).encode()).decode()
            reply = ask_by_proxies(url, seconds=seconds, most_bytes=_MOST_BYTES, headers=found, body=body)
        except TimeoutError:
            raise self._failure(f"no answer within {seconds:g} s") from None
        except (OSError, HTTPException, UnicodeError) as error:  # UnicodeError: of a name of a host
            raise self._failure(str(error)) from None
        except ValueError:
            raise self._failure(f"its answer is larger than {_MOST_BYTES >> 20} MiB") from None
        if reply.status >= 300:
            raise self._failure(_reason(reply))
        return self._result(reply.body)

    def _result(self, text: bytes) -> list[Points]:
        try:
            return [_series(each) for each in json.loads(text)["data"]["result"]]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
            raise self._failure("its answer is not that of a Prometheus") from None

    def _failure(self, reason: str) -> UserError:
        return UserError(f"could not ask Prometheus at {self.address}: {reason}")


def _series(row: Any) -> Points:
    """Return a series of an answer. Raises what a row of another form raises."""
    labels, pairs = row["metric"], [row["value"]] if "value" in row else row["values"]
    if not all(isinstance(each, str) for each in (*labels, *labels.values())):
        raise TypeError
    points = tuple((float(at), float(value)) for at, value in pairs)
    if not points or not all(0.0 <= at < LATEST for at, _ in points):
        raise ValueError
    return Points(labels, points)


def _reason(reply: Reply) -> str:
    if reply.status in _REFUSED:
        return f"{_REFUSED[reply.status]} (status {reply.status})"
    if reply.status < 400:
        return f"it sends to another page, as for a login (status {reply.status})"
    try:
        told = json.loads(reply.body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        told = reply.reason
    return f"{str(told)[:300]} (status {reply.status})"
