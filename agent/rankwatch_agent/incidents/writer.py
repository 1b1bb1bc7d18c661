"""Writes one bundle, part by part. A part that fails costs only itself.

What may soon be gone comes first: flight recorders and stacks of processes that a scheduler is about to kill.
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

from rankwatch.conventions.states import EvidenceFault
from rankwatch.untrusted.children import Limits
from rankwatch_agent.incidents.bundle import (
    CHUNK_BYTES,
    MANIFEST_NAME,
    RANKS_NAME,
    Bundle,
    BundleFolder,
    EvidenceError,
    manifest,
    ranks_file,
)
from rankwatch_agent.incidents.diagnosis import DIAGNOSE, BundleDiagnosis, diagnose, root_causes_of
from rankwatch_agent.incidents.diagnosis import LIMITS as VERDICT_LIMITS
from rankwatch_agent.incidents.dumps import add_profiles
from rankwatch_agent.incidents.episodes import Incident, RootCause
from rankwatch_agent.incidents.metrics_history import MetricsHistory, MetricsPage
from rankwatch_agent.incidents.rank_files import (
    add_black_boxes,
    add_final_states,
    add_flight_recorders,
    add_log_lines,
    add_process_states,
    add_stacks,
    add_terminated_stacks,
    reread_processes,
)

WRITE_SECONDS = 120.0
"""Time for a whole bundle. Nothing is written after it."""
_GZIP = 16 + zlib.MAX_WBITS


class BundleResult(NamedTuple):
    root_causes: tuple[RootCause, ...]
    faults: Counter[EvidenceFault]
    free_bytes: int
    """Bytes that may still be added to the bundle."""


@dataclass(frozen=True, kw_only=True)
class BundleWriter:
    """Writes bundles. `write` raises EvidenceError where a bundle is impossible."""

    history: MetricsHistory
    node: str
    max_bytes: int
    recorder_seconds: float = 3.0
    """Time for the flight recorder of a rank; ranks that are silent take it together, once."""
    stack_seconds: float = 10.0
    """Time for py-spy at one rank."""
    verdict_limits: Limits = VERDICT_LIMITS
    diagnosis: Sequence[str] = DIAGNOSE
    """The command, without the bundle."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def write(self, incident: Incident, path: Path) -> BundleResult:
        """Fill the empty directory at `path`."""
        ends = self.monotonic() + WRITE_SECONDS
        folder = BundleFolder(path, max_bytes=self.max_bytes, ends=ends, monotonic=self.monotonic)
        bundle = Bundle(incident, folder)
        add_process_states(bundle)
        add_flight_recorders(bundle, each_seconds=self.recorder_seconds, monotonic=self.monotonic)
        add_stacks(bundle, environ=self.environ, each_seconds=self.stack_seconds, monotonic=self.monotonic)
        add_black_boxes(bundle)
        add_terminated_stacks(bundle)
        add_log_lines(bundle)
        add_profiles(bundle)
        add_final_states(bundle)
        _add_metrics(bundle, self.history)
        reread_processes(bundle)
        folder.use_reserve()
        with bundle.part(RANKS_NAME):
            folder.write(RANKS_NAME, [ranks_file(bundle)])
        diagnosis = self._add_verdict(bundle)
        self._add_manifest(bundle, diagnosis)
        return BundleResult(root_causes_of(incident, diagnosis), bundle.faults, folder.free_bytes)

    def _add_verdict(self, bundle: Bundle) -> BundleDiagnosis | None:
        """Add verdict.json: the diagnosis, or why there is none."""
        diagnosis = None
        try:
            diagnosis = diagnose(bundle.folder.path, command=self.diagnosis, limits=self.verdict_limits)
            text = diagnosis.text
        except EvidenceError as error:
            bundle.add_fault("verdict", error)
            text = msgspec.json.encode({"error": str(error)}) + b"\n"
        with bundle.part("verdict.json"):
            bundle.folder.write("verdict.json", [text])
        return diagnosis

    def _add_manifest(self, bundle: Bundle, diagnosis: BundleDiagnosis | None) -> None:
        verdict = None if diagnosis is None else {"state": diagnosis.state, "ranks": diagnosis.ranks}
        wall_offset = self.wall() - self.monotonic()
        text = manifest(bundle, wall_offset=wall_offset, node=self.node, verdict=verdict)
        bundle.folder.write(MANIFEST_NAME, [text])


def _add_metrics(bundle: Bundle, history: MetricsHistory) -> None:
    """Add the agent's metrics of before the run's last progress, and of now."""
    for name, page in (
        ("metrics/before.prom", history.before(bundle.incident.since)),
        ("metrics/after.prom", history.now()),
    ):
        if page is None:
            bundle.add_missing(name, "the agent had no page of its metrics")
            continue
        with bundle.part(name):
            bundle.folder.write(name, _decompressed(page))


def _decompressed(page: MetricsPage) -> Iterator[bytes]:
    compressed, decompressor = io.BytesIO(page.text), zlib.decompressobj(_GZIP)
    while chunk := compressed.read(CHUNK_BYTES // 16):
        yield decompressor.decompress(chunk)
    yield decompressor.flush()
