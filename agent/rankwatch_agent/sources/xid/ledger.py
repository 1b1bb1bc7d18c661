"""Counts of XID errors by GPU and code, from two sources that tell of the same errors.

NVML events and the kernel log each lose errors now and then (NVML before its worker runs, the log
where it is not readable or was overwritten). Each source is counted by itself; what is exported is the
larger count: an error that both tell of counts once, and the result never falls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rankwatch_agent.sources.xid.account import XidAccount
from rankwatch_agent.sources.xid.table import SEVERITY_IN_LOG, UNKNOWN, XidMeaning

MAX_CODES = 64
"""Distinct codes kept for one GPU; further ones are counted together. The driver knows some 110."""
MAX_GPUS = 64
"""GPUs and PCI addresses kept; further ones are counted together, under the name `other`."""
OTHER_GPU = "other"
PATIENCE_SECONDS = 30.0
"""Time the kernel log is given to say how severe an NVLink error is that NVML told of: six of its runs."""


class XidCount(NamedTuple):
    """One GPU and code."""

    gpu: str
    """UUID; the PCI bus id where the GPU at it is not known."""
    xid: int | None
    """None: the codes beyond MAX_CODES together."""
    errors: int
    last_timestamp_seconds: float | None
    """Unix time of the latest one; None where no source knows."""


class XidLedger:
    """Any thread may note or read."""

    def __init__(
        self, table: Mapping[int, XidMeaning], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._table = table
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._gpus: dict[str, dict[int | None, XidAccount]] = {}
        self._uuids: dict[str, str] = {}

    def meaning(self, xid: int) -> XidMeaning:
        """What the table says of a code; UNKNOWN where it has none."""
        return self._table.get(xid, UNKNOWN)

    def note(
        self,
        source: str,
        gpu: str,
        xid: int,
        timestamp_seconds: float | None,
        *,
        severity: str | None = None,
    ) -> None:
        """One error that a source (`nvml`, `kernel_log`) told of.

        gpu: UUID or PCI bus id.
        severity: what the source itself says of this occurrence. Without it the table decides; for the
        codes that the kernel log judges by occurrence, only after the log had time to do so.
        """
        now = self._monotonic()
        if severity is None and xid not in SEVERITY_IN_LOG:
            severity = self.meaning(xid).severity
        with self._lock:
            account = self._account(self._uuids.get(gpu, gpu), xid)
            account.note(source, timestamp_seconds, severity, now)

    def learn(self, bus_id: str, uuid: str) -> None:
        """The GPU at a PCI address is this one, from now on: what was counted at the address becomes its."""
        with self._lock:
            if len(self._uuids) >= MAX_GPUS and bus_id not in self._uuids:
                return
            self._uuids[bus_id] = uuid
            for xid, account in self._gpus.pop(bus_id, {}).items():
                self._account(uuid, xid).absorb(account)

    def counts(self) -> list[XidCount]:
        """Every GPU and code that occurred, in order."""
        with self._lock:
            found = [
                XidCount(gpu, xid, account.total(), account.last_timestamp_seconds)
                for gpu, codes in self._gpus.items()
                for xid, account in codes.items()
            ]
        return sorted(found, key=lambda each: (each.gpu, each.xid is None, each.xid or 0))

    def severities(self) -> dict[tuple[str, str], int]:
        """Errors by GPU and severity, those left out whose severity is still open."""
        found: dict[tuple[str, str], int] = {}
        settled_before = self._monotonic() - PATIENCE_SECONDS
        with self._lock:
            for gpu, codes in self._gpus.items():
                for xid, account in codes.items():
                    account.settle(self.meaning(xid or 0).severity, settled_before)
                    for severity, count in account.by_severity.items():
                        found[gpu, severity] = found.get((gpu, severity), 0) + count
        return found

    def _account(self, gpu: str, xid: int | None) -> XidAccount:
        if gpu not in self._gpus and len(self._gpus) >= MAX_GPUS:
            gpu = OTHER_GPU
        codes = self._gpus.setdefault(gpu, {})
        if xid not in codes and len(codes) >= MAX_CODES:
            xid = None
        return codes.setdefault(xid, XidAccount())
