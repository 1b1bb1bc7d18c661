"""One alerting rule with the annotations every alert carries, and templates that query when it fires."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.runs import RUN_SIZE, SMALL_RUN
from rankwatch_alerts.rules import (
    MAY_PAGE,
    NO_PAGE,
    PAGE_LABEL,
    RUN_DEBUG_UID,
    Alert,
    AlertRule,
    Severity,
    duration,
    promql,
)

OF_RUN = ("cluster", "run")
OF_RANK = ("cluster", "run", "rank", "node")

NO_RUN = "no run is hit"
"""Cost of what hits no run."""
_FIRST_ACT = re.compile(r"\[\[(.+?)\]\]")


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
    dashboard: str = "",
    cost: str = "",
    **more: str,
) -> AlertRule:
    """The rule, with links to its runbook and to the dashboard; `more` are further annotations.

    `description` marks what to do first: "[[Check the disk]], and keep the last checkpoint."
    `of_run`: the alert has the label `run`, so the dashboard opens on that run. A critical alert of a run
    says in a label whether the run is large enough to page.
    `cost`: what it costs; if not given, what the run costs and loses.
    `dashboard`: uid and variables of another dashboard to open, from `opened_on`.
    """
    severity = severity_of(config, alert, severity)
    dashboard = dashboard or opened_on(RUN_DEBUG_UID, *(OF_RUN if of_run else ()))
    if of_run and "slowdown" not in more:  # which says it better
        more = {**more, "cost": cost or _cost_of_run()}
    if of_run and severity is Severity.CRITICAL:
        labels = {**labels, PAGE_LABEL: _may_page()}
    first_act = _FIRST_ACT.search(description)
    return AlertRule(
        alert=alert,
        expression=promql(expression),
        for_seconds=for_seconds,
        keep_firing_seconds=keep_firing_seconds,
        severity=severity,
        labels=labels,
        first_act=first_act[1][0].upper() + first_act[1][1:] if first_act else "",
        annotations={
            "summary": summary,
            "description": _FIRST_ACT.sub(r"\1", description),
            **more,
            "runbook_url": f"{config.runbook_base_url}/{alert}",
            "dashboard_url": f"{config.dashboard_base_url}/d/{dashboard}",
        },
    )


def _cost_of_run() -> str:
    """What the run costs and loses, in money where its price is known, else in rank-hours.

    Lost is the time that was neither productive nor without a process, over the window of goodput. A run that
    has just begun has lost nothing that was measured, but its size is known at once.
    """
    lost = 'state!~"productive|down", cluster=%q, run=%q'
    of_size = looked_up(
        f"max({RUN_SIZE}{matching(OF_RUN)})",
        OF_RUN,
        'the run has a world size of {{ . | first | value | printf "%.0f" }}; '
        "what it loses is not yet measured",
        "not known",
    )
    of_ranks = looked_up(
        f"sum(run_state:rankwatch_goodput_ranks:mean{{{lost}}})",
        OF_RUN,
        'the run loses {{ . | first | value | printf "%.1f" }} rank-hours an hour',
        of_size,
    )
    in_money = looked_up(
        f"sum by (currency) (run_state:rankwatch_cost_per_hour:sum{{{lost}}})",
        OF_RUN,
        ', and loses {{ . | first | value | printf "%.2f" }} of it',
        "",
        by="currency",
    )
    known = looked_up(
        f"max by (currency) (run:rankwatch_cost_per_hour:sum{matching(OF_RUN)})",
        OF_RUN,
        'the run costs {{ . | first | value | printf "%.2f" }} {{ . | first | label "currency" }} an hour'
        + in_money,
        of_ranks,
        by="currency",
    )
    return f"{{{{ if $labels.run }}}}{known}{{{{ else }}}}{NO_RUN}{{{{ end }}}}"


def severity_of(config: RuleConfig, alert: Alert, shipped: Severity) -> Severity:
    """The severity that the user has set, else the one that the alert is shipped with."""
    return Severity(config.severities.get(alert, shipped))


def opened_on(uid: str, *labels: str) -> str:
    """A dashboard whose variables have the values of the alert's labels."""
    chosen = "&".join(f"var-{each}={{{{ $labels.{each} | urlquery }}}}" for each in labels)
    return f"{uid}?{chosen}" if chosen else uid


def _may_page() -> str:
    """Never empty: Prometheus would write the template itself into its series of alerts."""
    return looked_up(f"{SMALL_RUN}{matching(OF_RUN)}", OF_RUN, NO_PAGE, MAY_PAGE)


def lasting(
    config: RuleConfig,
    alert: Alert,
    severity: Severity,
    *,
    condition: str,
    record: str,
    by: tuple[str, ...],
    seconds: float,
) -> str:
    """The condition, once it has held for `seconds`; `record` is a series that exists only while it holds.

    With `for` instead, Prometheus would forget at a restart how long the alert was pending or firing (unless
    `for` is at least its grace period of ten minutes), and wait anew after one evaluation without it. The
    series does not forget: as many evaluations as fill the time must have seen the condition, and some may be
    missing between them. An alert that was firing shortly before goes on at once.
    """
    on, severe = f"on ({', '.join(by)})", f'severity="{severity_of(config, alert, severity)}"'
    window, memory = duration(seconds + config.missed_seconds), duration(config.memory_seconds)
    return promql(f"""
        {condition}
        and {on}
        (
          count_over_time({record}[{window}]) > {seconds / config.scrape_interval_seconds:g}
          or {on}
          last_over_time(ALERTS{{alertname="{alert}", {severe}, alertstate="firing"}}[{memory}])
        )
    """)


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
