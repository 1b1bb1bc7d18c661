"""Answers a scrape: negotiates format and compression, renders a snapshot."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client.exposition import choose_encoder, gzip_accepted

from rankwatch.conventions import Label
from rankwatch_agent.runtime.export.family import families
from rankwatch_agent.runtime.export.lines import LineEncoder
from rankwatch_agent.runtime.export.process import ProcessFamilies
from rankwatch_agent.runtime.supervision.snapshot import Snapshot

MAX_FORMATS = 4
"""Formats whose lines are remembered; there are more, since a scraper may name any version."""
_GZIP_LEVEL = 1
"""Higher levels cost several times the CPU for a tenth of the size."""


class Reply(NamedTuple):
    """Body and content headers of the answer to a scrape."""

    body: bytes
    headers: dict[str, str]


class Exposition:
    """Renders snapshots in the format a scraper asks for. `render` may be called from any thread."""

    def __init__(self, constant_labels: Mapping[str, str]) -> None:
        self._constant_labels = constant_labels
        self._process = ProcessFamilies()
        self._lock = threading.Lock()
        self._encoders: dict[str, LineEncoder] = {}

    def render(self, snapshot: Snapshot, *, accept: str, accept_encoding: str) -> Reply:
        """The snapshot for the given Accept and Accept-Encoding headers (empty where there are none)."""
        encoder, content_type = self._encoder(accept)
        body = encoder.encode([*families(snapshot.collections), *self._process.families()])
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if gzip_accepted(accept_encoding):
            body = gzip.compress(body, _GZIP_LEVEL)
            headers["Content-Encoding"] = "gzip"
        return Reply(body, headers)

    def _encoder(self, accept: str) -> tuple[LineEncoder, str]:
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version such as "1.x" cannot be compared with 1.0.0
            encode, content_type = choose_encoder("")
        if not content_type.isascii() or len(content_type) > 200:
            encode, content_type = choose_encoder("")
        with self._lock:
            known = self._encoders.get(content_type)
            if known is None:
                if len(self._encoders) >= MAX_FORMATS:
                    self._encoders.clear()
                known = self._encoders[content_type] = LineEncoder(encode, self._constant_labels)
        return known, content_type


def constant_labels(*, node: str, cluster: str) -> dict[str, str]:
    """The labels on every series: the node, and the cluster where it is known."""
    labels = {Label.NODE.value: node}
    if cluster:
        labels[Label.CLUSTER.value] = cluster
    return labels
