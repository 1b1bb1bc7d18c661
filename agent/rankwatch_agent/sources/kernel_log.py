"""Collector `kernel_log`: counts XID errors and known faults of GPUs, NICs and the host in the kernel's log.

At its start it reads everything that the kernel still holds since boot, so that the counts survive a restart
of the agent. Only root can write to /dev/kmsg. A line that a process wrote there counts like the kernel's
own, so that a fault can be rehearsed.

Which process was killed for lack of memory stands in two lines of one kill:

oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),...,task_memcg=/kubepods/pod1,task=python,pid=77,uid=0
Memory cgroup out of memory: Killed process 77 (python) total-vm:22kB, anon-rss:5kB, file-rss:6kB, ...
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rankwatch.untrusted.text import printable
from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, Series, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.node_events import NodeEvents, OomKill
from rankwatch_agent.runtime.source import source
from rankwatch_agent.sources.gpu.inventory import GpuInventory
from rankwatch_agent.sources.kernel_files import parse_count, parse_kernel_file
from rankwatch_agent.sources.kernel_log_lines import (
    EVENTS,
    FALLEN_OFF_THE_BUS,
    KernelLogReader,
    KernelRecord,
    XidLine,
    events_in,
    parse_identity,
    parse_nvlink5,
    parse_sxid,
    parse_xid,
)
from rankwatch_agent.sources.shared import NodeShared
from rankwatch_agent.sources.xid import (
    LOG_LEVELS,
    Nvlink5Error,
    Nvlink5Rule,
    XidCounter,
    load_rules,
    rule_for,
)

logger = logging.getLogger(__name__)


MAX_LINES = 20_000
"""Lines read in one run, about a second of work. The next run reads the rest."""
SAME_LOSS_SECONDS = 60.0
"""Lines closer together than this report the same loss of a GPU.

Some drivers repeat them while it is down.
"""
OTHER_SUBCODE = "other"
"""Value of the label `subcode` for all subcodes that no rule names."""
MAX_SUBCODE_COUNTS = 1024
"""Counts kept. A node of 16 GPUs has fewer even if everything fails; counts beyond are dropped."""
MAX_SXID_COUNTS = 512
"""Counts kept of NVSwitches; a code beyond is counted as `other`. NVIDIA lists about 150 codes."""
_MAX_GPUS = 64


@source(interval_seconds=5.0, deadline_seconds=5.0)
def kernel_log(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    yield KernelLogCollector(
        path=config.kernel_log,
        procfs=config.procfs,
        inventory=shared.inventory,
        xids=shared.xids,
        schedule=schedule,
        events=shared.events,
    )


class KernelLogCollector:
    """Follows one log.

    procfs: gives the time of boot, from which the log counts its times.
    events: takes the processes that were killed for lack of memory.
    """

    name = "kernel_log"

    def __init__(
        self,
        *,
        path: Path,
        procfs: Path,
        inventory: GpuInventory,
        xids: XidCounter,
        schedule: Schedule,
        events: NodeEvents | None = None,
        max_lines: int = MAX_LINES,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._oom_kills = OomKillReader(events or NodeEvents())
        self._reader = KernelLogReader(path)
        self._stat = procfs / "stat"
        self._inventory = inventory
        self._xids = xids
        self._max_lines = max_lines
        self._events: Counter[str] = Counter()
        self._losses = GpuLosses()
        self._nvlink5 = Nvlink5Counts(load_rules())
        self._sxids: Counter[tuple[str, str, str]] = Counter()
        """Errors of NVSwitches by switch, code and severity."""
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Read the records since the last run.

        There are no series until the records of before the start are read, since they would look like new
        events. Raises NotApplicable where there is no kernel log, CollectError where it cannot be read.
        """
        records = self._reader.read(self._max_lines)
        boot_time = None
        if records:
            with suppress(NotApplicable, CollectError):
                boot_time = parse_kernel_file(self._stat, parse_boot_time)
        for record in records:
            self._events.update(events_in(record.text))
            self._count_xid(record, boot_time)
            self._count_sxid(record)
            self._oom_kills.take(record)
        if not self._reader.caught_up:
            return Collection()
        events = (
            sample("rankwatch_kernel_log_events_total", (event,), self._events[event]) for event in EVENTS
        )
        nvlink5 = self._nvlink5.series(self._gpu_at)
        missed = sample("rankwatch_kernel_log_records_missed_total", (), self._reader.missed)
        sxids = (
            sample("rankwatch_nvswitch_sxid_errors_total", key, count) for key, count in self._sxids.items()
        )
        return Collection((*events, *nvlink5, *sxids, missed))

    def _count_xid(self, record: KernelRecord, boot_time: float | None) -> None:
        identity = parse_identity(record.text)
        if identity is not None:
            self._xids.identify(*identity)
        line = parse_xid(record.text)
        if line is None or not self._losses.is_new_error(line, record.seconds):
            return
        gpu = self._gpu_at(line.bus_id)
        meaning = self._xids.meaning(line.xid)
        severity = line.severity or meaning.severity
        timestamp = boot_time + record.seconds if boot_time is not None else None
        self._xids.add(self.name, gpu, line.xid, timestamp, severity=severity)
        error = parse_nvlink5(record.text)
        advice = Advice(meaning.action, "")
        if error is not None:
            advice = self._nvlink5.add(error, line.bus_id, default_action=meaning.action)
        self._log(line._replace(severity=severity), gpu, timestamp, record.text, advice)

    def _count_sxid(self, record: KernelRecord) -> None:
        line = parse_sxid(record.text)
        if line is None:
            return
        key = (line.bus_id, str(line.sxid), "fatal" if line.fatal else "nonfatal")
        known = key in self._sxids or len(self._sxids) < MAX_SXID_COUNTS
        self._sxids[key if known else ("other", "other", key[2])] += 1
        if self._log_limit.allows(f"{line}"):
            logger.log(
                logging.ERROR if line.fatal else logging.WARNING,
                "SXid %d on NVSwitch %s: the kernel log says %r",
                line.sxid,
                line.bus_id,
                record.text[:1000],
                extra={"event": "sxid"},
            )

    def _gpu_at(self, bus_id: str) -> str:
        known = self._inventory.by_bus_id(bus_id)
        return known.uuid if known is not None else bus_id

    def _log(self, line: XidLine, gpu: str, timestamp: float | None, text: str, advice: Advice) -> None:
        """Log the raw line, which holds more than any series: process, link, subcode."""
        if not self._log_limit.allows(f"{gpu} {line.xid} {line.severity} {advice}"):
            return
        logger.log(
            LOG_LEVELS.get(line.severity or "", logging.INFO),
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
    """Parse the Unix time of boot from /proc/stat, in whole seconds."""
    for line in text.splitlines():
        if line.startswith("btime "):
            return float(parse_count(line.split()[1]))
    raise ValueError("the line btime is missing")


def _utc(timestamp: float) -> str:
    try:
        return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a log that the kernel did not write may hold any number
        return f"{timestamp:g}"


class _Loss(NamedTuple):
    seconds: float
    """Time of the latest line, on the log's clock."""
    explicit: bool
    """True if a line with the XID code was among them."""


class GpuLosses:
    """Recognises lines that report the same loss: a GPU that falls off the bus has several, one perhaps an
    XID."""

    def __init__(self) -> None:
        self._losses: dict[str, _Loss] = {}

    def is_new_error(self, line: XidLine, seconds: float) -> bool:
        """Return False for a line that repeats a loss which was counted; True for all other errors."""
        if line.xid != FALLEN_OFF_THE_BUS:
            return True
        known = self._losses.get(line.bus_id)
        if known is None and len(self._losses) >= _MAX_GPUS:
            self._losses.clear()
        same = known if known is not None and abs(seconds - known.seconds) < SAME_LOSS_SECONDS else None
        explicit = not line.implied
        self._losses[line.bus_id] = _Loss(seconds, explicit or (same is not None and same.explicit))
        return same is None or (explicit and same.explicit)


class Advice(NamedTuple):
    """What to do about one occurrence."""

    action: str
    investigate: str
    """Things to look at; empty where there is nothing."""


class Nvlink5Counts:
    """Counts NVLink 5 errors by subcode.

    GPUs are known by PCI bus id until they are exported. Not thread-safe.
    """

    def __init__(self, rules: Sequence[Nvlink5Rule]) -> None:
        self._rules = rules
        self._named = frozenset[str]().union(*(rule.subcodes for rule in rules))
        self._counts: Counter[tuple[str, int, str, str]] = Counter()

    def add(self, error: Nvlink5Error, bus_id: str, *, default_action: str) -> Advice:
        """Count one error. `default_action` is the action of its code, used where no rule matches."""
        rule = rule_for(self._rules, error)
        action = default_action if rule is None else rule.action_for(error)
        key = (bus_id, error.xid, error.subcode if error.subcode in self._named else OTHER_SUBCODE, action)
        if key in self._counts or len(self._counts) < MAX_SUBCODE_COUNTS:
            self._counts[key] += 1
        return Advice(action, "" if rule is None else rule.investigate)

    def series(self, name_of: Callable[[str], str]) -> Iterator[Series]:
        """Yield every count. `name_of` returns the GPU at a bus id."""
        for (bus_id, xid, subcode, action), count in self._counts.items():
            yield sample(
                "rankwatch_gpu_xid_subcode_errors_total", (name_of(bus_id), str(xid), subcode, action), count
            )


MOST_CHARACTERS = 240
"""Of a line that is kept."""
_MOST_CGROUP_CHARACTERS = 4096
_VICTIM = re.compile(r"^oom-kill:.{0,9000}?,task_memcg=([^,]{1,4096}),task=.{0,40}?,pid=(\d{1,9}),")
_KILLED = re.compile(r"^(?:Memory cgroup out|Out) of memory: Killed process (\d{1,9}) \((.{0,64}?)\)")


class OomKillReader:
    """Turns records of the kernel log into kills. Not thread-safe."""

    def __init__(self, events: NodeEvents) -> None:
        self._events = events
        self._victim = (0, "")
        """The process whose kill was announced last, and its cgroup."""

    def take(self, record: KernelRecord) -> None:
        text = record.text
        if "oom-kill:" in text and (victim := _VICTIM.match(text)):
            self._victim = int(victim[2]), victim[1][:_MOST_CGROUP_CHARACTERS]
        elif "Killed process" in text and (killed := _KILLED.match(text)):
            pid = int(killed[1])
            cgroup = self._victim[1] if self._victim[0] == pid else ""
            line = printable(text[:MOST_CHARACTERS])
            self._events.add_kill(OomKill(pid, printable(killed[2]), record.seconds, cgroup, line))
