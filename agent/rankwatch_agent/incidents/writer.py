"""Writes one bundle, step by step; a step that fails costs its own part, and the manifest says so.

What may be gone in a moment comes first: the recorders and stacks of processes that somebody is about to
kill.
"""

from __future__ import annotations

import io
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from rankwatch.conventions.incidents import EvidenceFault
from rankwatch_agent.incidents.bundle import (
    CHUNK_BYTES,
    NAME,
    RANKS_NAME,
    BundleFolder,
    Draft,
    EvidenceError,
    manifest,
    ranks_file,
)
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.incidents.limited_process import Limits
from rankwatch_agent.incidents.metrics_history import MetricsPages, Page
from rankwatch_agent.incidents.rank_files import (
    keep_black_boxes,
    keep_flight_recorders,
    keep_terminated_stacks,
)
from rankwatch_agent.incidents.rank_state import keep_last_words, keep_processes, keep_stacks
from rankwatch_agent.incidents.registry import Culprit
from rankwatch_agent.incidents.verdict import DIAGNOSE, Verdict, culprits_of, diagnose
from rankwatch_agent.incidents.verdict import LIMITS as VERDICT_LIMITS

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


WRITE_SECONDS = 120.0
"""Past this nothing more of a bundle is written."""


class Written(NamedTuple):
    """What came of a bundle."""

    culprits: tuple[Culprit, ...]
    faults: Counter[EvidenceFault]
    left_bytes: int
    """What may still be added to the bundle."""


@dataclass(frozen=True, kw_only=True)
class BundleWriter:
    """How bundles are written.

    Raises EvidenceError from `write` where there can be no bundle at all.
    """

    pages: MetricsPages
    node: str
    most_bytes: int
    recorder_seconds: float = 3.0
    """For the flight recorder of one rank."""
    stack_seconds: float = 10.0
    """For py-spy at one rank."""
    verdict_limits: Limits = VERDICT_LIMITS
    diagnosis: Sequence[str] = DIAGNOSE
    """The command, without the bundle."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def write(self, incident: Incident, path: Path) -> Written:
        """Fill the empty directory at `path`."""
        ends = self.monotonic() + WRITE_SECONDS
        folder = BundleFolder(path, most_bytes=self.most_bytes, ends=ends, monotonic=self.monotonic)
        draft = Draft(incident, folder)
        keep_flight_recorders(draft, each_seconds=self.recorder_seconds, monotonic=self.monotonic)
        keep_processes(draft)
        keep_stacks(draft, environ=self.environ, each_seconds=self.stack_seconds, monotonic=self.monotonic)
        keep_black_boxes(draft)
        keep_terminated_stacks(draft)
        keep_last_words(draft)
        keep_counters(draft, self.pages)
        folder.use_reserve()
        with draft.attempt(RANKS_NAME):
            folder.write(RANKS_NAME, [ranks_file(incident, draft.processes)])
        verdict = self._judge(draft)
        self._sign(draft, verdict)
        return Written(
            culprits_of(incident, verdict if isinstance(verdict, Verdict) else None),
            draft.faults,
            folder.left_bytes,
        )

    def _judge(self, draft: Draft) -> Verdict | None:
        """The verdict; verdict.json holds it, or why there is none."""
        verdict = None
        try:
            verdict = diagnose(draft.folder.path, command=self.diagnosis, limits=self.verdict_limits)
            text = verdict.text
        except EvidenceError as error:
            draft.fails("verdict", error)
            text = msgspec.json.encode({"error": str(error)}) + b"\n"
        with draft.attempt("verdict.json"):
            draft.folder.write("verdict.json", [text])
        return verdict

    def _sign(self, draft: Draft, verdict: Verdict | None) -> None:
        text = manifest(
            draft.incident,
            wall_offset=self.wall() - self.monotonic(),
            node=self.node,
            files=draft.folder.files,
            missing=draft.missing,
            verdict=None if verdict is None else {"state": verdict.state, "ranks": verdict.ranks},
        )
        draft.folder.write(NAME, [text])
