"""Collector `kernel_log`: what the kernel says of GPUs, NICs and the host; it counts XID errors.

At the start it reads all that the kernel still has since boot, so that a restart of the agent keeps its
counts. Only root can write to /dev/kmsg; a line that a process wrote there counts like the kernel's own,
so that a fault can be rehearsed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Collection, Schedule, Series
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.supervision.log_limit import LogLimit
from rankwatch_agent.sources.gpu.inventory import GpuInventory
from rankwatch_agent.sources.kernel_files import parse_count, parse_kernel_file
from rankwatch_agent.sources.kernel_log.lines import (
    EVENTS,
    FALLEN_OFF_THE_BUS,
    XidLine,
    events_in,
    parse_identity,
    parse_nvlink5,
    parse_xid,
)
from rankwatch_agent.sources.kernel_log.reader import KernelLogReader, Record
from rankwatch_agent.sources.xid.counter import XidCounter
from rankwatch_agent.sources.xid.meanings import (
    CRITICAL,
    WARNING,
    Nvlink5Error,
    Nvlink5Rule,
    load_rules,
    rule_for,
)

logger = logging.getLogger(__name__)

_ERRORS = metric("rankwatch_gpu_xid_subcode_errors_total")

OTHER_SUBCODE = "other"
"""Of all subcodes that no rule names."""
MAX_KEYS = 1024
"""Counts kept; a node of 16 GPUs on which everything fails has fewer. What comes beyond is not counted."""


class Advice(NamedTuple):
    """What one occurrence asks for."""

    action: str
    investigate: str
    """Empty where there is nothing to be looked at."""


class Nvlink5Counts:
    """Not for several threads at once. GPUs go by their PCI bus id until they are exported."""

    def __init__(self, rules: Sequence[Nvlink5Rule]) -> None:
        self._rules = rules
        self._named = frozenset[str]().union(*(rule.subcodes for rule in rules))
        self._counts: Counter[tuple[str, int, str, str]] = Counter()

    def take(self, error: Nvlink5Error, bus_id: str, *, otherwise: str) -> Advice:
        """Count one error; `otherwise` is the action of its code, for what no rule holds."""
        rule = rule_for(self._rules, error)
        action = otherwise if rule is None else rule.action_for(error)
        key = (bus_id, error.xid, error.subcode if error.subcode in self._named else OTHER_SUBCODE, action)
        if key in self._counts or len(self._counts) < MAX_KEYS:
            self._counts[key] += 1
        return Advice(action, "" if rule is None else rule.investigate)

    def series(self, name_of: Callable[[str], str]) -> Iterator[Series]:
        """Every count; `name_of` gives the GPU at a bus id."""
        for (bus_id, xid, subcode, action), count in self._counts.items():
            yield Series(_ERRORS, (name_of(bus_id), str(xid), subcode, action), count)


SAME_FALL_SECONDS = 60.0
"""Lines about one fall lie closer together than this; some drivers repeat them for as long as it is down."""
_MAX_GPUS = 64


class _Fall(NamedTuple):
    seconds: float
    """Time of the latest line, on the log's clock."""
    explicit: bool
    """Whether a line with the code was among them."""


class Falls:
    """Says which of the lines count."""

    def __init__(self) -> None:
        self._falls: dict[str, _Fall] = {}

    def counts(self, line: XidLine, seconds: float) -> bool:
        """False for a line that tells again of a fall that was counted; True for all other errors."""
        if line.xid != FALLEN_OFF_THE_BUS:
            return True
        known = self._falls.get(line.bus_id)
        if known is None and len(self._falls) >= _MAX_GPUS:
            self._falls.clear()
        same = known if known is not None and abs(seconds - known.seconds) < SAME_FALL_SECONDS else None
        explicit = not line.implied
        self._falls[line.bus_id] = _Fall(seconds, explicit or (same is not None and same.explicit))
        return same is None or (explicit and same.explicit)


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
        xids: XidCounter,
        schedule: Schedule,
        max_lines: int = MAX_LINES,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._reader = KernelLogReader(path)
        self._stat = procfs / "stat"
        self._inventory = inventory
        self._xids = xids
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
            self._xids.identify(*identity)
        line = parse_xid(record.text)
        if line is None or not self._falls.counts(line, record.seconds):
            return
        gpu = self._gpu_at(line.bus_id)
        meaning = self._xids.meaning(line.xid)
        severity = line.severity or meaning.severity
        timestamp = booted + record.seconds if booted is not None else None
        self._xids.add(self.name, gpu, line.xid, timestamp, severity=severity)
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
            self._xids.meaning(line.xid).meaning,
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
