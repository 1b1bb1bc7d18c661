"""One alerting rule with the annotations every alert carries, and templates that query when it fires."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import RUN_DEBUG_UID, Alert, AlertRule, Severity, promql

OF_RUN = ("cluster", "run")
OF_RANK = ("cluster", "run", "rank", "node")

_THIS_RUN = "?var-cluster={{ $labels.cluster | urlquery }}&var-run={{ $labels.run | urlquery }}"


def alert_rule(
    config: RuleConfig,
    alert: Alert,
    expression: str,
    *,
    for_seconds: float,
    keep_firing_seconds: float,
    severity: Severity,
    summary: str,
    description: str,
    labels: Mapping[str, str] = MappingProxyType({}),
    of_run: bool = True,
    **more: str,
) -> AlertRule:
    """The rule, with links to its runbook and to the dashboard; `more` are further annotations.

    `of_run`: the alert has the label `run`, so the dashboard opens on that run.
    """
    return AlertRule(
        alert=alert,
        expression=promql(expression),
        for_seconds=for_seconds,
        keep_firing_seconds=keep_firing_seconds,
        severity=severity,
        labels=labels,
        annotations={
            "summary": summary,
            "description": description,
            **more,
            "runbook_url": f"{config.runbook_base_url}/{alert}",
            "dashboard_url": f"{config.dashboard_base_url}/d/{RUN_DEBUG_UID}{_THIS_RUN if of_run else ''}",
        },
    )


def matching(labels: tuple[str, ...]) -> str:
    """Label matchers of a templated query: `{cluster=%q, run=%q}`."""
    return "{" + ", ".join(f"{each}=%q" for each in labels) + "}"


def looked_up(query: str, labels: tuple[str, ...], shown: str, none: str, *, by: str = "") -> str:
    """A template that queries when the alert fires.

    `query` holds one `%q` per label; `shown` is the template of the answer, which is `.`; `none` stands
    for an empty answer; `by` is a label to sort by, if the answer may hold several series.
    """
    arguments = "".join(f" $labels.{each}" for each in labels)
    ordered = f' | sortByLabel "{by}"' if by else ""
    return (
        f"{{{{ with printf `{query}`{arguments} | query{ordered} }}}}{shown}{{{{ else }}}}{none}{{{{ end }}}}"
    )


def listed(query: str, labels: tuple[str, ...], shown: str, none: str, *, by: str = "") -> str:
    """As `looked_up`, for a list: `shown` is the template of one series, which is `$series`.

    People read descriptions, so the query must be bounded (topk, count by).
    """
    items = f"{{{{ range $index, $series := . }}}}{{{{ if $index }}}}, {{{{ end }}}}{shown}{{{{ end }}}}"
    return looked_up(query, labels, items, none, by=by)


def value_of(query: str, labels: tuple[str, ...], none: str, shown: str = 'printf "%.2f"') -> str:
    """As `looked_up`, for one number."""
    return looked_up(query, labels, f"{{{{ . | first | value | {shown} }}}}", none)
