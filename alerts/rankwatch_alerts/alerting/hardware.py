"""What alerts on hardware have in common: they name the run that uses it, and page only then.

A fault of hardware that a run uses stops that run or makes it slow. Of hardware that nobody uses it is a
ticket: the next run must not get it.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent, indent

from rankwatch_alerts.alerting.alert import NO_RUN, alert_rule, listed, looked_up, opened_on
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.hardware import (
    RANK_OF_GPU,
    RUN_OF_NETWORK,
    RUN_OF_NODE,
    USER_OF_NETWORK,
    USER_OF_NODE,
)
from rankwatch_alerts.rules import HARDWARE_UID, Alert, AlertRule, Severity


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a node: how its user is found, and what alerts say about both."""

    labels: tuple[str, ...]
    """Labels that a fault shares with the series of the user."""
    user: str
    """Recorded series with at most one user of each part."""
    named: tuple[str, ...]
    """Labels that the user has: run, and rank where there is one."""
    in_use: str
    """A sentence on the user."""
    idle: str
    """A sentence where there is none."""
    user_or_none: str = ""
    """Recorded series that each part has, with or without a user, so that a fault is asked for only once."""


_RANKS = listed(
    "topk(16, max by (rank) (last_over_time("
    "rankwatch_rank_start_timestamp_seconds{cluster=%q, node=%q, run=%q}[15m])))",
    ("cluster", "node", "run"),
    "{{ $series.Labels.rank }}",
    "none any more",
    by="rank",
)
GPU = Part(
    labels=("cluster", "node", "gpu"),
    user=RANK_OF_GPU,
    named=("run", "rank"),
    in_use="{{ if $labels.rank }}Rank {{ $labels.rank }} of run {{ $labels.run }} works on it."
    "{{ else }}Run {{ $labels.run }} is on its node, and its ranks do not name their GPUs.{{ end }}",
    idle="No run works on it.",
)
NODE = Part(
    labels=("cluster", "node"),
    user=RUN_OF_NODE,
    named=("run",),
    in_use=f"Run {{{{ $labels.run }}}} is on this node, with rank(s) {_RANKS}.",
    idle="No run is on this node.",
    user_or_none=USER_OF_NODE,
)
NETWORK = Part(
    labels=("cluster", "node"),
    user=RUN_OF_NETWORK,
    named=("run",),
    in_use=f"Run {{{{ $labels.run }}}} spans this node and others, with rank(s) {_RANKS} here.",
    idle="No run spans this node and others.",
    user_or_none=USER_OF_NETWORK,
)
"""The network of a node, which only runs on several nodes need."""
THE_GPU = "GPU {}of node {{{{ $labels.node }}}} ({{{{ $labels.gpu }}}})".format(
    looked_up(
        "group by (index, pci_bus_id, serial) (rankwatch_gpu_info{cluster=%q, node=%q, gpu=%q})",
        GPU.labels,
        "{{ with . | first }}{{ .Labels.index }} at {{ .Labels.pci_bus_id }}, serial number "
        "{{ .Labels.serial }}, {{ end }}",
        "",
    )
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of a part, and what becomes of it."""

    alert: Alert
    part: Part
    summary: str
    happened: str
    """What is wrong, in one or more sentences."""
    for_seconds: float
    page: str = ""
    """Expression of what pages where a run uses the part, and is a ticket where none does."""
    ticket: str = ""
    """Expression of what is a ticket in both cases."""
    info: str = ""
    """Expression of what is mere context."""
    if_used: str = ""
    """What to do where a run uses the part."""
    if_idle: str = ""
    """What to do in all other cases."""
    reason: str = ""
    """Tells apart the faults that share an alert."""


def hardware_alerts(config: RuleConfig, fault: Fault) -> tuple[AlertRule, ...]:
    """The rules of a fault: a page, a ticket and context, as far as it has them."""
    part = fault.part
    either = f"{{{{ if $labels.run }}}}{part.in_use}{{{{ else }}}}{part.idle}{{{{ end }}}}"
    found = []
    if fault.page:
        found.append(
            _rule(
                config,
                fault,
                Severity.CRITICAL,
                _used(part, fault.page),
                f"{fault.happened} {part.in_use} {fault.if_used}",
            )
        )
    if fault.page and not fault.ticket:
        text = f"{fault.happened} {part.idle} {fault.if_idle}"
        expression = _idle(part, fault.page)
        found.append(_rule(config, fault, Severity.WARNING, expression, text, cost=NO_RUN))
    text = f"{fault.happened} {either} {fault.if_idle}"
    if fault.ticket:
        expression = _in_both_cases(part, fault.ticket, fault.page)
        found.append(_rule(config, fault, Severity.WARNING, expression, text))
    if fault.info:
        expression = _in_both_cases(part, fault.info)
        found.append(_rule(config, fault, Severity.INFO, expression, f"{fault.happened} {either}"))
    return tuple(found)


def newest(metric: str, window: str, by: str = "cluster, node, gpu") -> str:
    """A gauge by its last value within the window: a missed scrape changes nothing."""
    return f"max by ({by}) (last_over_time({metric}[{window}]))"


def _rule(
    config: RuleConfig,
    fault: Fault,
    severity: Severity,
    expression: str,
    description: str,
    cost: str = "",
) -> AlertRule:
    return alert_rule(
        config,
        fault.alert,
        expression,
        for_seconds=fault.for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=severity,
        labels={"reason": fault.reason} if fault.reason else {},
        summary=fault.summary,
        description=description,
        dashboard=opened_on(HARDWARE_UID, *fault.part.labels),
        cost=cost,
    )


def _in_both_cases(part: Part, fault: str, also_idle: str = "") -> str:
    """The fault with the labels of the part's user, or without; where nobody uses it, the other one, too."""
    if part.user_or_none and not also_idle:
        return _joined(part, fault, part.user_or_none)
    idle = f"{_block(also_idle)}\nor\n{_block(fault)}" if also_idle else fault
    return f"{_unnamed(part, idle)}\nor\n{_used(part, fault)}"


def _used(part: Part, fault: str) -> str:
    """The fault where the part has a user, with the labels of it."""
    return _joined(part, fault, f"({part.user} > bool 0)")


def _joined(part: Part, fault: str, user: str) -> str:
    on, named = ", ".join(part.labels), ", ".join(part.named)
    return f"{_block(fault)}\n* on ({on}) group_left ({named})\n{user}"


def _idle(part: Part, fault: str) -> str:
    return f"{_block(fault)}\nunless on ({', '.join(part.labels)})\n{part.user}"


def _unnamed(part: Part, fault: str) -> str:
    """The fault where the part has no user, with empty labels for one."""
    text = _idle(part, fault)
    for each in part.named:
        text = f'label_replace(\n{indent(text, "  ")},\n  "{each}", "", "", ""\n)'
    return text


def _block(text: str) -> str:
    return f"(\n{indent(dedent(text).strip(), '  ')}\n)"
