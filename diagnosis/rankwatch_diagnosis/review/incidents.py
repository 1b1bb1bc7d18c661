"""Incidents of a run by its evidence bundles, and events of the hardware.

Events of the hardware are growths of the counters of faults, by the metrics in a bundle or by Prometheus.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rankwatch.untrusted.folders import read_regular
from rankwatch_agent.incidents.bundle import MANIFEST_NAME
from rankwatch_diagnosis.loss.anomaly import Severity
from rankwatch_diagnosis.review.model import Event, EventKind
from rankwatch_diagnosis.run.gpus import Page, read_page

FAULT_COUNTERS: Mapping[str, tuple[str, Severity]] = {
    "rankwatch_gpu_xid_errors_total": ("XID errors of a GPU", Severity.WARNING),
    "rankwatch_nvswitch_sxid_errors_total": ("errors of an NVSwitch", Severity.WARNING),
    "rankwatch_kernel_log_events_total": ("lines of the kernel log about a fault", Severity.WARNING),
    "rankwatch_gpu_ecc_errors_total": ("ECC errors of a GPU", Severity.WARNING),
    "rankwatch_gpu_nvlink_errors_total": ("errors of NVLinks", Severity.WARNING),
    "rankwatch_gpu_throttle_seconds_total": ("seconds with the clocks of a GPU held down", Severity.INFO),
    "rankwatch_host_oom_kills_total": ("processes killed by the kernel for lack of memory", Severity.WARNING),
    "rankwatch_network_link_flaps_total": ("losses of a network link", Severity.WARNING),
    "rankwatch_network_hardware_errors_total": ("errors of a network interface", Severity.WARNING),
    "rankwatch_rdma_link_downed_total": ("losses of an RDMA link", Severity.WARNING),
    "rankwatch_rdma_errors_total": ("errors of an RDMA port", Severity.INFO),
}
"""Counters that report faults -> what they count, and how much that matters."""
XID_MOMENT = "rankwatch_gpu_xid_last_timestamp_seconds"
XID_MEANING = "rankwatch_xid_info"
CALM_LABELS: Mapping[str, frozenset[str]] = {
    "reason": frozenset({"sw_power_cap", "low_utilization", "gpu_idle", "sync_boost", "board_limit"}),
    "kind": frozenset({"corrected"}),
    "scope": frozenset({"aggregate"}),
}
"""Label -> values with which a counter reports no fault, or the same fault a second time."""
_MOST_EVENTS = 100
LEAST_GROWTH = 0.5
"""Less is noise of an interpolated increase, or a short moment of throttling."""
_UNNAMED = frozenset({"cluster", "node", "instance", "job", "run"})
_WANTED = (*FAULT_COUNTERS, XID_MOMENT, XID_MEANING)


class Growth(NamedTuple):
    """By how much a counter of faults grew."""

    name: str
    labels: Mapping[str, str]
    amount: float


def growth_event(growth: Growth, *, at: float, until: float, source: str, node: str = "") -> Event:
    """Return the growth between two moments as an event; it happened at some time between them."""
    what, severity = FAULT_COUNTERS[growth.name]
    where = ", ".join(f"{name} {value}" for name, value in sorted(growth.labels.items()) if value)
    text = f"{growth.amount:,.4g} {what}{f' ({where})' if where else ''}"
    return Event(at, EventKind.HARDWARE, severity, text, source, node=node, until=until)


def is_fault(labels: Mapping[str, str]) -> bool:
    """Say whether a counter with these labels reports a fault."""
    return not any(labels.get(name) in calm for name, calm in CALM_LABELS.items())


def named(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that say which device and what fault."""
    return {name: value for name, value in labels.items() if name not in _UNNAMED and name[:2] != "__"}


def xid_event(
    labels: Mapping[str, str], moment: float, meanings: Mapping[str, Mapping[str, str]], source: str
) -> Event:
    """Return an XID error at its own moment."""
    xid = labels.get("xid", "?")
    known = meanings.get(xid, {})
    told = ", ".join(filter(None, (known.get("meaning", ""), known.get("action", ""))))
    severe = known.get("severity") == "critical"
    text = f"XID {xid} on GPU {labels.get('gpu', '?')}{f': {told}' if told else ''}"
    severity = Severity.CRITICAL if severe else Severity.WARNING
    return Event(moment, EventKind.HARDWARE, severity, text, source, node=labels.get("node", ""))


def events_of_bundle(bundle: Path, *, at: float, until: float, node: str) -> tuple[list[Event], str]:
    """Return what the two pages of metrics in a bundle show, and why nothing is seen; empty where it is."""
    folder = bundle / "metrics"
    try:
        before, after = (read_page(folder / name, _WANTED) for name in ("before.prom", "after.prom"))
    except ModuleNotFoundError:
        return [], "events of the hardware: the metrics in the bundle need prometheus_client (extra [agent])"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "they are no metrics"
        return [], f"events of the hardware: the metrics in the bundle could not be read: {reason}"
    source = f"metrics in {bundle.name}"
    found = [
        growth_event(each, at=at, until=until, source=source, node=node) for each in _grown(before, after)
    ]
    meanings = {dict(labels).get("xid", ""): dict(labels) for name, labels in after if name == XID_MEANING}
    for (name, labels), moment in after.items():
        if name == XID_MOMENT and before.get((name, labels)) != moment:
            found.append(xid_event({**dict(labels), "node": node}, moment, meanings, source))
    return found[:_MOST_EVENTS], ""


def _grown(before: Page, after: Page) -> Iterator[Growth]:
    grown = (
        Growth(name, named(dict(labels)), value - before.get((name, labels), 0.0))
        for (name, labels), value in sorted(after.items(), key=lambda each: (each[0][0], sorted(each[0][1])))
        if name in FAULT_COUNTERS and is_fault(dict(labels))
    )
    return islice((each for each in grown if each.amount > LEAST_GROWTH), _MOST_EVENTS)


_MOST_BYTES = 4 << 20
_MOST_BUNDLES = 200
_LATEST = 1e11
"""Unix time in the year 5138."""


class KeptIncident(NamedTuple):
    """An evidence bundle, by its manifest."""

    bundle: Path
    run: str
    kind: str
    why: str
    opened: float
    """Unix time."""
    node: str
    ranks: tuple[int, ...]
    """Whom the evidence names."""
    missing: tuple[str, ...]
    """Things that the bundle lacks, and why."""

    def event(self) -> Event:
        """Return the incident as an event."""
        named = f"; the evidence names rank {', '.join(map(str, self.ranks[:8]))}" if self.ranks else ""
        text = f"{self.kind.replace('_', ' ')}: {self.why}{named}"
        source = f"evidence bundle {self.bundle.name}"
        return Event(self.opened, EventKind.INCIDENT, Severity.CRITICAL, text, source, node=self.node)


def read_incident(bundle: Path) -> KeptIncident | None:
    """Return the incident of a bundle; None where its manifest is missing or makes no sense."""
    import msgspec

    try:
        found = msgspec.json.decode(read_regular(bundle / MANIFEST_NAME, _MOST_BYTES))
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    opened = found.get("opened_timestamp_seconds") if isinstance(found, dict) else None
    if not isinstance(opened, int | float) or not 0.0 < opened < _LATEST:
        return None
    run, kind, why, node = (_text(found.get(name)) for name in ("run", "kind", "why", "node"))
    ranks, missing = _lists(found)
    return KeptIncident(bundle, run, kind, why, float(opened), node, ranks, missing)


def _lists(found: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the ranks that the verdict names, and what the bundle lacks."""
    verdict, missing = found.get("verdict"), found.get("missing")
    ranks = verdict.get("ranks") if isinstance(verdict, dict) else None
    lacking = missing[:64] if isinstance(missing, list) else []
    return (
        tuple(each for each in ranks if type(each) is int) if isinstance(ranks, list) else (),
        tuple(
            f"{_text(each.get('what'))}: {_text(each.get('why'))}"
            for each in lacking
            if isinstance(each, dict)
        ),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def incidents_of(run: str, evidence: Path) -> tuple[list[KeptIncident], str]:
    """Return a run's incidents with evidence in this directory, and why none are seen; empty if they are."""
    try:
        folders = sorted(each for each in evidence.iterdir() if not each.name.startswith("."))
    except FileNotFoundError:
        return [], f"incidents: no evidence is kept in {evidence}"
    except OSError as error:
        return [], f"incidents: the evidence in {evidence} could not be read: {error.strerror or error}"
    found = (each for each in map(read_incident, folders[-_MOST_BUNDLES:]) if each is not None)
    return [each for each in found if each.run == run], ""
