"""Collector `xid`: exports the XID errors that the collectors `gpu` and `kernel_log` counted.

NVML events and the kernel log both miss errors now and then: NVML before its worker runs, the log where it
cannot be read or was overwritten. Each source has its own count and the larger one is exported. So an error
that both report counts once, and no count ever falls.

What the codes mean is a table shipped with the agent, which the operator can correct. NVLink 5 errors (XID
144 to 150) have a second table. There the action depends on the subcode and on the registers in the line of
the kernel log.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, Series, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import NotApplicable, UserError
from rankwatch_agent.runtime.source import source
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from rankwatch_agent.sources.shared import NodeShared

_OTHER_CODES = "other"


@source(interval_seconds=5.0, deadline_seconds=5.0)
def xid(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    yield XidCollector(inventory=shared.inventory, xids=shared.xids, schedule=schedule)


class XidCollector:
    """Exports counts by GPU and code, counts by GPU and severity, and what each code that occurred means."""

    name = "xid"

    def __init__(self, *, inventory: GpuInventory, xids: XidCounter, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._inventory = inventory
        self._xids = xids

    def collect(self) -> Collection:
        """Return the counts; raises NotApplicable where no GPU is known and no error occurred."""
        gpus = self._inventory.gpus()
        for gpu in gpus:
            self._xids.identify(gpu.pci_bus_id, gpu.uuid)
        counts = self._xids.counts()
        if not gpus and not counts:
            raise NotApplicable("no GPU is known and no XID error occurred")
        return Collection((*_errors(counts), *self._events(gpus, counts), *self._meanings(counts)))

    def _events(self, gpus: Iterable[GpuIdentity], counts: Iterable[XidCount]) -> Iterator[Series]:
        """Yield each severity of every GPU, 0 before its first error: increase() needs a sample before it."""
        severities = self._xids.severities()
        names = dict.fromkeys((*(gpu.uuid for gpu in gpus), *(each.gpu for each in counts)))
        for gpu in names:
            for severity in SEVERITIES:
                yield sample(
                    "rankwatch_gpu_xid_events_total", (gpu, severity), severities.get((gpu, severity), 0)
                )

    def _meanings(self, counts: Iterable[XidCount]) -> Iterator[Series]:
        for xid in sorted({each.xid for each in counts if each.xid is not None}):
            meaning, severity, action = self._xids.meaning(xid)
            yield sample("rankwatch_xid_info", (str(xid), severity, action, meaning), 1)


def _errors(counts: Iterable[XidCount]) -> Iterator[Series]:
    for gpu, xid, errors, last in counts:
        labels = (gpu, _OTHER_CODES if xid is None else str(xid))
        yield sample("rankwatch_gpu_xid_errors_total", labels, errors)
        if last is not None:
            yield sample("rankwatch_gpu_xid_last_timestamp_seconds", labels, last)


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
    """NodeShared by the collectors that find XID errors and the one that exports them; safe for threads."""

    def __init__(
        self, table: Mapping[int, XidMeaning], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._table = table
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._gpus: dict[str, dict[int | None, _Code]] = {}
        self._uuids: dict[str, str] = {}

    def meaning(self, xid: int) -> XidMeaning:
        """Return the table's entry for a code; UNKNOWN where it has none."""
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
        """Return one entry for each GPU and code that occurred, sorted."""
        with self._lock:
            found = [
                XidCount(gpu, xid, code.total(), code.last_timestamp_seconds)
                for gpu, codes in self._gpus.items()
                for xid, code in codes.items()
            ]
        return sorted(found, key=lambda each: (each.gpu, each.xid is None, each.xid or 0))

    def severities(self) -> dict[tuple[str, str], int]:
        """Return (GPU, severity) -> errors, without those that still wait for their severity."""
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
        """Return the count of the source that saw most errors."""
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
        """Count the errors without a severity."""
        return self.total() - self.by_severity.total()

    def _set_timestamp(self, seconds: float | None) -> None:
        if seconds is not None:
            known = self.last_timestamp_seconds
            self.last_timestamp_seconds = seconds if known is None else max(known, seconds)


INFO = "info"
APPLICATION = "application"
WARNING = "warning"
CRITICAL = "critical"
SEVERITIES = (INFO, APPLICATION, WARNING, CRITICAL)
LOG_LEVELS = {CRITICAL: logging.ERROR, WARNING: logging.WARNING}
"""Level of the log line about an error of a severity; INFO for the others."""

SEVERITY_IN_LOG = frozenset(range(144, 151))
"""NVLink 5 codes: the kernel log states for each error whether it is fatal."""

_CODE = re.compile(r"[1-9][0-9]{0,4}")
_ACTION = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MAX_MEANING = 200


class XidMeaning(NamedTuple):
    meaning: str
    severity: str
    """One of SEVERITIES."""
    action: str
    """Action to take, as one word: reset_gpu, restart_app, none, ..."""


UNKNOWN = XidMeaning("unknown", WARNING, "look_up")
"""Stands for every code that is not in the table."""


def load_table(override: Path | None) -> Mapping[int, XidMeaning]:
    """Return the shipped table; fields that `override` sets replace the shipped ones. Raises UserError."""
    shipped = (
        resources.files("rankwatch_agent.sources").joinpath("xid_codes.toml").read_text(encoding="utf-8")
    )
    table = _override({}, tomllib.loads(shipped), "xid_codes.toml")
    if override is not None:
        table = _override(table, _read(override), str(override))
    return MappingProxyType(table)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"could not read XID table {file}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"could not parse XID table {file}: {error}") from None


def _override(
    table: Mapping[int, XidMeaning], overrides: Mapping[str, Any], origin: str
) -> dict[int, XidMeaning]:
    merged = dict(table)
    for key, fields in overrides.items():
        if not _CODE.fullmatch(key):
            raise UserError(f"could not use key {key!r:.100} in {origin}: expected an XID code such as 79")
        if not isinstance(fields, dict):
            raise _refused(key, fields, origin, "a table of meaning, severity, action")
        for name, value in fields.items():
            _check(f"{key}.{name}", name, value, origin)
        merged[int(key)] = merged.get(int(key), UNKNOWN)._replace(**fields)
    return merged


def _check(key: str, name: str, value: object, origin: str) -> None:
    if name not in XidMeaning._fields:
        raise _refused(key, value, origin, "one of the fields meaning, severity, action")
    if name == "severity" and value not in SEVERITIES:
        raise _refused(key, value, origin, f"one of {', '.join(SEVERITIES)}")
    if name == "action" and not (isinstance(value, str) and _ACTION.fullmatch(value)):
        raise _refused(key, value, origin, "one word of lower-case letters, digits and _")
    if name == "meaning" and not (isinstance(value, str) and 0 < len(value) <= _MAX_MEANING):
        raise _refused(key, value, origin, f"a text of 1 to {_MAX_MEANING} characters")


def _refused(key: str, value: object, origin: str, expected: str) -> UserError:
    return UserError(f"could not use {key} = {value!r:.100} in {origin}: expected {expected}")


_V1_BITS = 3
"""Drivers below R575 put three more bits (the number of the unit) below the bits that the rules name."""


class Nvlink5Error(NamedTuple):
    """One error as the driver logs it."""

    xid: int
    subcode: str
    """The part of NVLink, such as RLW_SRC_TRACK."""
    link: int
    """-1 where the error belongs to no single link."""
    interrupt: int
    """IntrInfo, the first register."""
    status: int | None
    """ErrorStatus, the second register; None where the line lacks it."""


class Nvlink5Rule(NamedTuple):
    """One row of NVIDIA's table; nvlink5.toml explains the fields."""

    xid: int
    subcodes: frozenset[str]
    action: str
    details: frozenset[int] = frozenset({0})
    statuses: frozenset[int] | None = None
    """None for any."""
    reset_if_set: int | None = None
    investigate: str = ""

    def fits(self, error: Nvlink5Error) -> bool:
        return (
            error.xid == self.xid
            and error.subcode in self.subcodes
            and (error.interrupt >> 20) & 0x3F in self.details
            and (self.statuses is None or error.status in self.statuses)
        )

    def action_for(self, error: Nvlink5Error) -> str:
        """Return what to do about an error that the rule covers, as one word."""
        if self.reset_if_set is None:
            return self.action
        # Below R575 the lowest five bits hold the number of the unit: 1 for XID 144, 2 for 145, ...
        old = error.interrupt & 0x1F == error.xid - 143
        return "reset_gpu" if error.interrupt >> self.reset_if_set + _V1_BITS * old & 1 else self.action


def load_rules() -> tuple[Nvlink5Rule, ...]:
    """Return the rules shipped with the agent."""
    text = resources.files("rankwatch_agent.sources").joinpath("nvlink5.toml").read_text(encoding="utf-8")
    return tuple(_rule(fields) for fields in tomllib.loads(text)["rule"])


def rule_for(rules: Iterable[Nvlink5Rule], error: Nvlink5Error) -> Nvlink5Rule | None:
    """Return the rule that covers the error; None where there is none."""
    return next((rule for rule in rules if rule.fits(error)), None)


def _rule(fields: dict[str, object]) -> Nvlink5Rule:
    sets = {
        name: frozenset(found)
        for name in ("subcodes", "details", "statuses")
        if isinstance(found := fields.get(name), list)
    }
    return Nvlink5Rule(**{**fields, **sets})  # type: ignore[arg-type]  # the file is ours and a test loads all of it
