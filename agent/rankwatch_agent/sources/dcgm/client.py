"""Asks a dcgm-exporter and reads its answer, which is untrusted and bounded in size and time.

The request is plain HTTP/1.0 on a socket. The standard library's client bounds each wait but not their sum,
and follows redirects to anywhere.

The answer is read line by line. dcgm-exporter does not escape label values, so a pod's label can put a quote
or a brace in the middle of a line and break a strict parser. The labels that identify the GPU come first in
every line and hold no quotes: only those are read.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Collection as Members
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from rankwatch.settings import FieldError
from rankwatch_agent.runtime.connect import connect_tcp, seconds_left
from rankwatch_agent.runtime.errors import CollectError

MAX_ANSWER_BYTES = 16 << 20
"""16 GPUs with every field of DCGM and the labels of their pods stay below 5 MB. It is in memory twice."""
_MAX_HEAD_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 18
_USER = re.compile(r"//[^/@]*@")


class Endpoint(NamedTuple):
    """The parts of the URL."""

    host: str
    port: int
    target: str
    """Path and query."""
    encrypted: bool

    def __str__(self) -> str:
        scheme = "https" if self.encrypted else "http"
        return f"{scheme}://{self.host}:{self.port}{self.target}"


def parse_endpoint(url: str) -> Endpoint:
    """The parts of an http or https URL; raises FieldError."""
    expected = "a URL such as http://localhost:9400/metrics, without a user and without spaces"
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        (parts.hostname or "").encode("idna")
    except ValueError:
        raise FieldError("dcgm_endpoint", _without_password(url), expected) from None
    sound = parts.scheme in ("http", "https") and parts.hostname and parts.username is None
    if not sound or not url.isascii() or not url.isprintable() or " " in url:
        raise FieldError("dcgm_endpoint", _without_password(url), expected)
    target = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
    return Endpoint(parts.hostname or "", port, target, parts.scheme == "https")


def _without_password(url: str) -> str:
    return _USER.sub("//...@", url)


def fetch(endpoint: Endpoint, timeout_seconds: float) -> bytes:
    """The body of the answer, if all of it comes in time; raises CollectError."""
    try:
        head, body = _exchange(endpoint, time.monotonic() + timeout_seconds)
    except OSError as error:
        raise CollectError(f"could not query {endpoint}: {error}") from None
    status, *lines = head.decode("latin-1").split("\r\n")
    words = status.split()
    if len(words) < 2 or not words[0].startswith("HTTP/1."):
        raise CollectError(f"could not query {endpoint}: the answer is not HTTP")
    if words[1] != "200":
        raise CollectError(f"could not query {endpoint}: it answered with status {words[1]!r:.20}")
    fields = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    if fields.get("transfer-encoding", "identity") != "identity" or "content-encoding" in fields:
        raise CollectError(f"could not read {endpoint}: the answer has an encoding that was not asked for")
    if fields.get("content-length", str(len(body))) != str(len(body)):
        raise CollectError(f"could not read {endpoint}: the answer was cut off at {len(body)} bytes")
    return body


def _exchange(endpoint: Endpoint, deadline: float) -> tuple[bytes, bytes]:
    """Head and body; raises OSError, or CollectError where the answer is too long."""
    answer = bytearray()
    with _connect(endpoint, deadline) as connection:
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        request = (
            f"GET {endpoint.target} HTTP/1.0\r\nHost: {host}:{endpoint.port}\r\nAccept: text/plain\r\n\r\n"
        )
        connection.sendall(request.encode("ascii"))
        while True:
            connection.settimeout(seconds_left(deadline))
            chunk = connection.recv(_CHUNK_BYTES)
            if not chunk:
                break
            answer += chunk
            if len(answer) > MAX_ANSWER_BYTES:
                raise CollectError(f"could not read {endpoint}: more than {MAX_ANSWER_BYTES} bytes")
    end = answer.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES)
    if end < 0:
        raise CollectError(f"could not query {endpoint}: the answer is not HTTP")
    return bytes(answer[:end]), bytes(memoryview(answer)[end + 4 :])


def _connect(endpoint: Endpoint, deadline: float) -> socket.socket:
    connection = connect_tcp(endpoint.host, endpoint.port, deadline)
    if not endpoint.encrypted:
        return connection
    try:
        connection.settimeout(seconds_left(deadline))
        return ssl.create_default_context().wrap_socket(connection, server_hostname=endpoint.host)
    except OSError:
        connection.close()
        raise


MAX_LINES = 500_000
"""Lines read of one answer; 16 GPUs with every field have about 10,000."""
MAX_SAMPLES = 50_000
"""Samples kept of one answer; 16 GPUs of 7 instances with 100 fields, repeated for pods, have 22,400."""

_NAME = re.compile(rb"([A-Z][A-Z0-9_]{0,199})\{")
_VALUE = re.compile(rb"\}\s+([-+.0-9A-Za-z]{1,40})(?:\s+\d{1,20})?\s*$")
_LABEL = re.compile(rb'[{,](UUID|gpu_uuid|pci_bus_id|GPU_I_ID|nvlink|nvswitch)="([^"]{0,100})"')
_HEAD_BYTES = 4096
"""Only this many bytes from the start of a line are searched for the labels that identify the GPU."""
_TAIL_BYTES = 100
"""Only this many bytes at the end of a line are searched for the value."""


class DcgmSample(NamedTuple):
    """One value of one field."""

    field: str
    uuid: str
    """Empty where the line lacks it."""
    pci_bus_id: str
    """As dcgm-exporter writes it; empty where the line lacks it."""
    gpu_instance: str
    """Number of the MIG instance; empty for the whole GPU."""
    link: str
    """Number of the NVLink; empty where the value belongs to no link."""
    value: float


class DcgmAnswer(NamedTuple):
    """The part of an answer that is used."""

    samples: tuple[DcgmSample, ...]
    """Samples of the wanted fields."""
    fields: int
    """Lines that hold any field of DCGM."""
    cut: bool
    """True where the answer exceeds MAX_LINES or MAX_SAMPLES; the rest is left out."""


def parse_answer(text: bytes, wanted: Members[str]) -> DcgmAnswer:
    """The samples of the wanted fields; lines that cannot be parsed are skipped."""
    samples: list[DcgmSample] = []
    fields = 0
    for number, line in enumerate(_lines(text)):
        if number >= MAX_LINES or len(samples) >= MAX_SAMPLES:
            return DcgmAnswer(tuple(samples), fields, True)
        name = _NAME.match(line)
        if name is None:
            continue
        fields += line.startswith(b"DCGM_")
        field = name[1].decode("ascii")
        if field not in wanted:
            continue
        sample = _sample(field, line)
        if sample is not None:
            samples.append(sample)
    return DcgmAnswer(tuple(samples), fields, False)


def _lines(text: bytes) -> Iterator[bytes]:
    """One line after another, without a list of all of them."""
    start = 0
    while start < len(text):
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end + 1


def _sample(field: str, line: bytes) -> DcgmSample | None:
    value = _VALUE.search(line, max(0, len(line) - _TAIL_BYTES))
    if value is None:
        return None
    try:
        number = float(value[1])
    except ValueError:
        return None
    labels: dict[bytes, str] = {}
    for name, text in _LABEL.findall(line, 0, _HEAD_BYTES):
        labels.setdefault(name, text.decode("utf-8", "replace"))  # the first one: later ones come from pods
    if b"nvswitch" in labels:
        return None
    return DcgmSample(
        field=field,
        uuid=labels.get(b"UUID") or labels.get(b"gpu_uuid", ""),
        pci_bus_id=labels.get(b"pci_bus_id", ""),
        gpu_instance=labels.get(b"GPU_I_ID", ""),
        link=labels.get(b"nvlink", ""),
        value=number,
    )
