"""The agent's own metrics before and after: hardware, network, collectives, everything it knows."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator

from rankwatch_agent.incidents.draft import Draft
from rankwatch_agent.incidents.folder import CHUNK_BYTES
from rankwatch_agent.incidents.pages import MetricsPages, Page

_GZIP = 16 + zlib.MAX_WBITS


def keep_counters(draft: Draft, pages: MetricsPages) -> None:
    """A page from before the last progress of the run, and one of now."""
    for name, page in (
        ("metrics/before.prom", pages.before(draft.incident.since)),
        ("metrics/after.prom", pages.now()),
    ):
        if page is None:
            draft.lacks(name, "the agent had no page of its metrics")
            continue
        with draft.attempt(name):
            draft.folder.write(name, _text(page))


def _text(page: Page) -> Iterator[bytes]:
    """Unpacked piece by piece."""
    compressed, unpacking = io.BytesIO(page.text), zlib.decompressobj(_GZIP)
    while chunk := compressed.read(CHUNK_BYTES // 16):
        yield unpacking.decompress(chunk)
    yield unpacking.flush()
