"""Counts of XID errors by GPU and code, from two sources that report the same errors.

NVML events and the kernel log both miss errors now and then: NVML before its worker runs, the log where it
cannot be read or was overwritten. Each source has its own count and the larger one is exported. So an error
that both report counts once, and no count ever falls.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rankwatch_agent.sources.xid.meanings import SEVERITY_IN_LOG, UNKNOWN, XidMeaning

MAX_CODES = 64
"""Distinct codes kept for one GPU; all others share one count. The driver knows about 110."""
MAX_GPUS = 64
"""GPUs and PCI addresses kept; all others share one count under the name `other`."""
OTHER_GPU = "other"
SEVERITY_WAIT_SECONDS = 30.0
"""How long an NVLink error from NVML waits for the kernel log to state its severity: six runs of the log
collector."""


class XidCount(NamedTuple):
    """The errors of one code on one GPU."""

    gpu: str
    """UUID, or the PCI bus id while the GPU there is unknown."""
    xid: int | None
    """None for all codes beyond MAX_CODES together."""
    errors: int
    last_timestamp_seconds: float | None
    """Unix time of the latest error; None where no source knows it."""


class XidCounter:
    """Shared by the collectors that find XID errors and the one that exports them; safe for threads."""

    def __init__(
        self, table: Mapping[int, XidMeaning], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._table = table
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._gpus: dict[str, dict[int | None, _Code]] = {}
        self._uuids: dict[str, str] = {}

    def meaning(self, xid: int) -> XidMeaning:
        """The table's entry for a code; UNKNOWN where it has none."""
        return self._table.get(xid, UNKNOWN)

    def add(
        self,
        source: str,
        gpu: str,
        xid: int,
        timestamp_seconds: float | None,
        *,
        severity: str | None = None,
    ) -> None:
        """Count one error that a source (`nvml`, `kernel_log`) reported.

        gpu: UUID or PCI bus id.
        severity: what the source itself states for this error. Without it the table decides: at once, or
            after SEVERITY_WAIT_SECONDS for the codes whose severity the kernel log states.
        """
        now = self._monotonic()
        if severity is None and xid not in SEVERITY_IN_LOG:
            severity = self.meaning(xid).severity
        with self._lock:
            self._code(self._uuids.get(gpu, gpu), xid).add(source, timestamp_seconds, severity, now)

    def identify(self, bus_id: str, uuid: str) -> None:
        """Name the GPU at a PCI address: it takes over all errors counted there, past and future."""
        with self._lock:
            if len(self._uuids) >= MAX_GPUS and bus_id not in self._uuids:
                return
            self._uuids[bus_id] = uuid
            for xid, code in self._gpus.pop(bus_id, {}).items():
                self._code(uuid, xid).merge(code)

    def counts(self) -> list[XidCount]:
        """One entry for each GPU and code that occurred, sorted."""
        with self._lock:
            found = [
                XidCount(gpu, xid, code.total(), code.last_timestamp_seconds)
                for gpu, codes in self._gpus.items()
                for xid, code in codes.items()
            ]
        return sorted(found, key=lambda each: (each.gpu, each.xid is None, each.xid or 0))

    def severities(self) -> dict[tuple[str, str], int]:
        """(GPU, severity) -> errors, without those that still wait for their severity."""
        found: dict[tuple[str, str], int] = {}
        waiting_until = self._monotonic() - SEVERITY_WAIT_SECONDS
        with self._lock:
            for gpu, codes in self._gpus.items():
                for xid, code in codes.items():
                    code.settle(self.meaning(xid or 0).severity, waiting_until)
                    for severity, count in code.by_severity.items():
                        found[gpu, severity] = found.get((gpu, severity), 0) + count
        return found

    def _code(self, gpu: str, xid: int | None) -> _Code:
        if gpu not in self._gpus and len(self._gpus) >= MAX_GPUS:
            gpu = OTHER_GPU
        codes = self._gpus.setdefault(gpu, {})
        if xid not in codes and len(codes) >= MAX_CODES:
            xid = None
        return codes.setdefault(xid, _Code())


class _Code:
    """The errors of one code on one GPU, by source and by severity. Not safe for threads."""

    def __init__(self) -> None:
        self.by_source: Counter[str] = Counter()
        self.by_severity: Counter[str] = Counter()
        """Sums up to at most `total`. An error keeps the severity it once got."""
        self.last_timestamp_seconds: float | None = None
        self._waiting_since = 0.0

    def total(self) -> int:
        """The count of the source that saw most errors."""
        return max(self.by_source.values(), default=0)

    def add(self, source: str, timestamp_seconds: float | None, severity: str | None, now: float) -> None:
        """Count one error; one of severity None waits for the other source or for `settle`."""
        self.by_source[source] += 1
        self._set_timestamp(timestamp_seconds)
        if self._waiting() > 0 and severity is not None:
            self.by_severity[severity] += 1
        elif self._waiting() > 0:
            self._waiting_since = now

    def settle(self, severity: str, waiting_until: float) -> None:
        """Give this severity to the errors that wait, if the last of them came before `waiting_until`."""
        if self._waiting() > 0 and self._waiting_since <= waiting_until:
            self.by_severity[severity] += self._waiting()

    def merge(self, other: _Code) -> None:
        """Add what was counted under another name of the same GPU."""
        self.by_source.update(other.by_source)
        self._set_timestamp(other.last_timestamp_seconds)
        self._waiting_since = max(self._waiting_since, other._waiting_since)
        for severity, count in other.by_severity.items():
            # Both may hold the same error, one from each source.
            self.by_severity[severity] += min(count, self._waiting())

    def _waiting(self) -> int:
        """Errors without a severity."""
        return self.total() - self.by_severity.total()

    def _set_timestamp(self, seconds: float | None) -> None:
        if seconds is not None:
            known = self.last_timestamp_seconds
            self.last_timestamp_seconds = seconds if known is None else max(known, seconds)
