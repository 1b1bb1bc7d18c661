"""Events of the hardware: by how much the counters of faults grew, by the metrics in an evidence bundle or
by Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

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
    """The growth between two moments as an event; it happened at some time between them."""
    what, severity = FAULT_COUNTERS[growth.name]
    where = ", ".join(f"{name} {value}" for name, value in sorted(growth.labels.items()) if value)
    text = f"{growth.amount:,.4g} {what}{f' ({where})' if where else ''}"
    return Event(at, EventKind.HARDWARE, severity, text, source, node=node, until=until)


def is_fault(labels: Mapping[str, str]) -> bool:
    """Whether a counter with these labels reports a fault."""
    return not any(labels.get(name) in calm for name, calm in CALM_LABELS.items())


def named(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that say which device and what fault."""
    return {name: value for name, value in labels.items() if name not in _UNNAMED and name[:2] != "__"}


def xid_event(
    labels: Mapping[str, str], moment: float, meanings: Mapping[str, Mapping[str, str]], source: str
) -> Event:
    """An XID error at its own moment."""
    xid = labels.get("xid", "?")
    known = meanings.get(xid, {})
    told = ", ".join(filter(None, (known.get("meaning", ""), known.get("action", ""))))
    severe = known.get("severity") == "critical"
    text = f"XID {xid} on GPU {labels.get('gpu', '?')}{f': {told}' if told else ''}"
    severity = Severity.CRITICAL if severe else Severity.WARNING
    return Event(moment, EventKind.HARDWARE, severity, text, source, node=labels.get("node", ""))


def events_of_bundle(bundle: Path, *, at: float, until: float, node: str) -> tuple[list[Event], str]:
    """What the two pages of metrics in a bundle show, and why nothing is seen; empty where it is."""
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
