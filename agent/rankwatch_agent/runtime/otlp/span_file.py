"""Writes spans to a file, a line of OTLP's JSON for each batch, for the Collector's otlpjsonfile receiver."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.otlp.spans import Outcome

logger = logging.getLogger(__name__)

_IDS = ("traceId", "spanId", "parentSpanId")


class SpanFile:
    """Appends batches to `path`.

    A full file becomes `path` with `.1` at its end and replaces the one before. Both together never take more
    than `max_bytes`.
    """

    pause_seconds = 0.0

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes // 2
        self._log_limit = LogLimit()

    def send(self, spans: Sequence[ReadableSpan]) -> Outcome:
        """Append one batch."""
        line = json_line(spans)
        if len(line) > self._max_bytes:
            return Outcome.LOST
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._rotate(len(line))
            with self._path.open("ab") as file:
                file.write(line)
        except OSError as error:
            if self._log_limit.allows("write"):
                logger.warning("could not write spans to %s: %s", self._path, error.strerror)
            return Outcome.LOST  # a part of the line may be in the file
        return Outcome.SENT

    def close(self) -> None:
        """Nothing is open between two batches."""

    def _rotate(self, more: int) -> None:
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size + more > self._max_bytes:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))


def json_line(spans: Sequence[ReadableSpan]) -> bytes:
    """The spans as one line in OTLP's JSON, in which ids are hexadecimal and not base64 as in protobuf's."""
    request = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
    for resource in request.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                _write_ids(span)
                for link in span.get("links", ()):
                    _write_ids(link)
    return json.dumps(request, separators=(",", ":")).encode() + b"\n"


def _write_ids(holder: dict[str, Any]) -> None:
    for name in _IDS:
        if name in holder:
            holder[name] = base64.b64decode(holder[name]).hex()
