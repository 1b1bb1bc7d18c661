"""Collector `kernel_log`: what the kernel says of GPUs, NICs and the host; its XID errors go to the ledger.

At the start it reads all that the kernel still has since boot, so that a restart of the agent keeps its
counts. Only root can write to /dev/kmsg; a line that a process wrote there counts like the kernel's own,
so that a fault can be rehearsed.
"""

from __future__ import annotations

import logging
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import CollectError, Collection, NotApplicable, Series
from rankwatch_agent.runtime.supervision.log_limit import LogLimit
from rankwatch_agent.runtime.supervision.schedule import Schedule
from rankwatch_agent.sources.gpu.inventory import GpuInventory
from rankwatch_agent.sources.kernel_files import parse_count, parse_kernel_file
from rankwatch_agent.sources.kernel_log.events import EVENTS, events_in
from rankwatch_agent.sources.kernel_log.falls import Falls
from rankwatch_agent.sources.kernel_log.nvlink5_count import Advice, Nvlink5Counts
from rankwatch_agent.sources.kernel_log.nvlink5_line import parse_nvlink5
from rankwatch_agent.sources.kernel_log.reader import KernelLogReader
from rankwatch_agent.sources.kernel_log.record import Record
from rankwatch_agent.sources.kernel_log.xid_line import XidLine, parse_identity, parse_xid
from rankwatch_agent.sources.xid.ledger import XidLedger
from rankwatch_agent.sources.xid.nvlink5 import load_rules
from rankwatch_agent.sources.xid.table import CRITICAL, WARNING

logger = logging.getLogger(__name__)

_EVENTS = metric("rankwatch_kernel_log_events_total")
_MISSED = metric("rankwatch_kernel_log_records_missed_total")

MAX_LINES = 20_000
"""Lines read in one run: at most about a second of work; the rest waits for the next run."""
_LEVELS = {CRITICAL: logging.ERROR, WARNING: logging.WARNING}


class KernelLogCollector:
    """Follows one log. `procfs` tells when the machine was booted, which the log's times count from."""

    name = "kernel_log"

    def __init__(
        self,
        *,
        path: Path,
        procfs: Path,
        inventory: GpuInventory,
        ledger: XidLedger,
        schedule: Schedule,
        max_lines: int = MAX_LINES,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._reader = KernelLogReader(path)
        self._stat = procfs / "stat"
        self._inventory = inventory
        self._ledger = ledger
        self._max_lines = max_lines
        self._events: Counter[str] = Counter()
        self._falls = Falls()
        self._nvlink5 = Nvlink5Counts(load_rules())
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Read what was logged since the last run.

        Raises NotApplicable where there is no kernel log, CollectError where it cannot be read. Until
        what was logged before the start is read, there are no series: they would look like new events.
        """
        records = self._reader.read(self._max_lines)
        booted = self._booted() if records else None
        for record in records:
            self._events.update(events_in(record.text))
            self._take_xid(record, booted)
        if not self._reader.caught_up:
            return Collection()
        events = (Series(_EVENTS, (event,), self._events[event]) for event in EVENTS)
        nvlink5 = self._nvlink5.series(self._gpu_at)
        return Collection((*events, *nvlink5, Series(_MISSED, (), self._reader.missed)))

    def _booted(self) -> float | None:
        """Unix time of the boot; None where /proc/stat does not tell."""
        try:
            return parse_kernel_file(self._stat, parse_boot_time)
        except (NotApplicable, CollectError):
            return None

    def _take_xid(self, record: Record, booted: float | None) -> None:
        identity = parse_identity(record.text)
        if identity is not None:
            self._ledger.learn(*identity)
        line = parse_xid(record.text)
        if line is None or not self._falls.counts(line, record.seconds):
            return
        gpu = self._gpu_at(line.bus_id)
        meaning = self._ledger.meaning(line.xid)
        severity = line.severity or meaning.severity
        timestamp = booted + record.seconds if booted is not None else None
        self._ledger.note(self.name, gpu, line.xid, timestamp, severity=severity)
        error = parse_nvlink5(record.text)
        advice = Advice(meaning.action, "")
        if error is not None:
            advice = self._nvlink5.take(error, line.bus_id, otherwise=meaning.action)
        self._log(line._replace(severity=severity), gpu, timestamp, record.text, advice)

    def _gpu_at(self, bus_id: str) -> str:
        known = self._inventory.by_bus_id(bus_id)
        return known.uuid if known is not None else bus_id

    def _log(self, line: XidLine, gpu: str, timestamp: float | None, text: str, advice: Advice) -> None:
        """The raw line, which holds more than any series: process, link, subcode."""
        if not self._log_limit.allows(f"{gpu} {line.xid} {line.severity} {advice}"):
            return
        logger.log(
            _LEVELS.get(line.severity or "", logging.INFO),
            "XID %d on GPU %s%s: %s; severity %s, action %s%s; the kernel log says %r",
            line.xid,
            gpu,
            f" at {_utc(timestamp)}" if timestamp is not None else "",
            self._ledger.meaning(line.xid).meaning,
            line.severity,
            advice.action,
            f", look at {advice.investigate}" if advice.investigate else "",
            text[:1000],
            extra={"event": "xid"},
        )


def parse_boot_time(text: str) -> float:
    """Unix time of the boot out of /proc/stat, in whole seconds."""
    for line in text.splitlines():
        if line.startswith("btime "):
            return float(parse_count(line.split()[1]))
    raise ValueError("no line btime")


def _utc(timestamp: float) -> str:
    try:
        return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a log that is no kernel's may hold any number
        return f"{timestamp:g}"
