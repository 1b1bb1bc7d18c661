"""Lints of rules and runbooks: mistakes that Prometheus and promtool accept.

Each check yields violations. Needs promql-parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rankwatch.conventions import METRICS, Kind
from rankwatch_alerts import RuleConfig, alert_groups
from rankwatch_alerts.alerting.telemetry import OF_RANKS_THAT_HAD_THEM, OF_RUNNING_RANKS
from rankwatch_alerts.recording.stall_causes import UNRESPONSIVE
from rankwatch_alerts.rules import Alert, AlertRule, RecordingRule
from support.alerts.promql import labels_of, parse, result_labels, selectors

CAUSES = "Causes told apart by evidence"
HEADINGS = (
    "Meaning",
    "Impact",
    "First five minutes",
    CAUSES,
    "Mitigation",
    "Verify",
    "When to stop and escalate",
)

_LEAST_CAUSES = 3
"""A page that knows fewer tells nothing apart."""
_EVER_MOVED = frozenset({"rankwatch_flight_recorder_pulls_total"})
"""Counters of which the rule of unresponsive ranks asks whether they ever moved, however long ago."""
_EVER_CARRIED = frozenset({"rankwatch_rdma_receive_bytes_total"})
"""The same for the rule of RDMA ports that are down, which must have carried data."""
_PRESENCE_OF: Mapping[str, frozenset[str]] = {
    Alert.TELEMETRY_ABSENT: frozenset((*OF_RUNNING_RANKS, *OF_RANKS_THAT_HAD_THEM)),
    Alert.RDMA_LINK_DOWN: _EVER_CARRIED,
    # Also what an agent had counted before this Prometheus saw it, of which no increase tells.
    Alert.BLACK_BOXES_LEFT_OUT: frozenset({"rankwatch_blackbox_faults_total"}),
    # The first save or load of a run may fail before the first scrape.
    Alert.CHECKPOINT_FAILED: frozenset({"rankwatch_checkpoint_stage_failures_total"}),
    Alert.RESUME_FAILED: frozenset(
        {"rankwatch_checkpoint_operations_total", "rankwatch_checkpoint_stage_failures_total"}
    ),
}
"""Counters of which rule and runbook of an alert ask whether they exist."""
_DASHBOARDS = {
    rule.alert: rule.annotations["dashboard_url"].partition("/d/")[2].partition("?")[0]
    for group in alert_groups(RuleConfig())
    for rule in group.rules
    if isinstance(rule, AlertRule)
}
"""Uid of the dashboard each alert links to."""
_RATES = frozenset({"rate", "irate", "increase", "resets"})
_PRESENCE = frozenset({"present_over_time", "absent", "absent_over_time"})
_COUNTERS = frozenset(each.name for each in METRICS if each.kind is Kind.COUNTER) | frozenset(
    each.name + suffix
    for each in METRICS
    if each.kind is Kind.HISTOGRAM
    for suffix in ("_bucket", "_sum", "_count")
)
_COUNTERS_OF_PROMETHEUS = frozenset({"prometheus_rule_evaluation_failures_total"})
_LABEL_IN_TEMPLATE = re.compile(r"\$labels\.(\w+)")
_QUERY_IN_TEMPLATE = re.compile(r"printf `([^`]*)`")
_SHOWN_METRIC = re.compile(r'"__name__":"([^"]+)"')
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_CURLED_QUERY = re.compile(r"--data-urlencode 'query=([^']*)'")


class Violation(NamedTuple):
    """One mistake: which check found it, where, and what is wrong."""

    check: str
    where: str
    message: str


def check_record(rule: RecordingRule) -> list[Violation]:
    """Violations in one recording rule."""
    return check_expression(
        rule.record, rule.expression, _EVER_MOVED if rule.record == UNRESPONSIVE else frozenset()
    )


def check_alert(rule: AlertRule) -> list[Violation]:
    """Violations in one alerting rule: expression, annotations and the queries inside them."""
    return [
        *check_expression(rule.alert, rule.expression, _PRESENCE_OF.get(rule.alert, frozenset())),
        *_annotation_labels(rule),
        *_annotation_text(rule),
        *_template_queries(rule),
    ]


def check_expression(where: str, text: str, presence_of: frozenset[str] = frozenset()) -> list[Violation]:
    """Violations in one expression; `presence_of` names counters of which only the existence matters."""
    try:
        tree = parse(text)
    except ValueError as error:
        return [Violation("parses", where, f"does not parse: {error}")]
    return [*_known_metrics(where, tree), *_counter_use(where, tree, presence_of)]


def check_runbook(alert: str, text: str) -> list[Violation]:
    """Violations in one runbook: fixed headings, commands to copy, the dashboard, queries that work."""
    return list(_runbook_page(alert, text))


def _known_metrics(where: str, expression: Any) -> Iterator[Violation]:
    """Undeclared names: Prometheus accepts them, the alert stays silent and the panel empty, for ever."""
    for each in selectors(expression):
        labels = labels_of(each.metric)
        if labels is None:
            yield Violation("known-metrics", where, f"{each.metric or 'a nameless selector'} is not declared")
            continue
        for label in each.matched:
            if label not in labels:
                yield Violation("known-metrics", where, f"{each.metric} has no label {label}")


def _counter_use(where: str, expression: Any, presence_of: frozenset[str]) -> Iterator[Violation]:
    """Raw counters, which tell when a process started, and rated gauges, where each fall is a restart."""
    for each in selectors(expression):
        rated = each.function in _RATES
        if each.metric in _COUNTERS and not rated:
            if each.function not in _PRESENCE and each.metric not in presence_of:
                yield Violation("counter-use", where, f"counter {each.metric} without rate or increase")
        elif rated and each.metric not in _COUNTERS | _COUNTERS_OF_PROMETHEUS:
            yield Violation("counter-use", where, f"{each.function} of {each.metric}, which is no counter")


def _annotation_labels(rule: AlertRule) -> Iterator[Violation]:
    """Labels in templates that the expression does not yield: they render as nothing."""
    present = result_labels(parse(rule.expression)) | set(rule.labels) | {"severity"}
    for annotation, text in rule.annotations.items():
        for label in sorted(set(_LABEL_IN_TEMPLATE.findall(text)) - present):
            message = f"{annotation} names label {label}, which the alert lacks"
            yield Violation("annotation-labels", rule.alert, message)


def _annotation_text(rule: AlertRule) -> Iterator[Violation]:
    """Summaries, descriptions and links that help nobody."""
    summary = rule.annotations.get("summary", "")
    if "{{" in summary:
        yield Violation("annotation-text", rule.alert, "summary is templated; it must not change")
    if not summary[:1].isupper() or not summary.endswith("."):
        yield Violation(
            "annotation-text", rule.alert, "summary is no sentence: capital first, full stop last"
        )
    names = result_labels(parse(rule.expression))
    if names and "{{" not in rule.annotations.get("description", ""):
        yield Violation("annotation-text", rule.alert, "description is not templated; it names no one")
    if not rule.annotations.get("runbook_url", "").endswith(f"/{rule.alert}"):
        yield Violation("annotation-text", rule.alert, "runbook_url does not end with the alert's name")
    if "/d/" not in rule.annotations.get("dashboard_url", ""):
        yield Violation("annotation-text", rule.alert, "dashboard_url names no dashboard")


def _template_queries(rule: AlertRule) -> Iterator[Violation]:
    """Queries of annotations, each checked like an expression."""
    for annotation, text in rule.annotations.items():
        for query in template_queries(text):
            presence_of = _PRESENCE_OF.get(rule.alert, frozenset())
            yield from check_expression(f"{rule.alert} {annotation}", query, presence_of)


def template_queries(text: str) -> Iterator[str]:
    """The queries of an annotation or a label, with x as the value of every label."""
    for query in _QUERY_IN_TEMPLATE.findall(text):
        yield query.replace("%q", '"x"')


def _runbook_page(alert: str, text: str) -> Iterator[Violation]:
    if not text.startswith(f"# {alert}\n"):
        yield Violation("runbook-page", alert, f"the first line is not '# {alert}'")
    if tuple(_HEADING.findall(text)) != HEADINGS:
        yield Violation("runbook-page", alert, f"the headings are not {', '.join(HEADINGS)}")
    uid = _DASHBOARDS[alert]
    if uid not in text:
        yield Violation("runbook-page", alert, f"the dashboard {uid} is not named")
    sections = dict(zip(_HEADING.findall(text), _HEADING.split(text)[2::2], strict=True))
    if sections.get(CAUSES, "").count("\n| ") < 2 + _LEAST_CAUSES:
        yield Violation("runbook-page", alert, f"{CAUSES}: no table with at least {_LEAST_CAUSES} causes")
    if "scalate" not in sections.get(HEADINGS[-1], ""):
        yield Violation("runbook-page", alert, f"{HEADINGS[-1]}: nobody to escalate to is named")
    blocks = _BLOCK.findall(text)
    if not any(language == "sh" for language, _ in blocks):
        yield Violation("runbook-page", alert, "there is no command to copy")
    for query in runbook_queries(text):
        yield from check_expression(alert, query, _PRESENCE_OF.get(alert, frozenset()))
    for name in _SHOWN_METRIC.findall(text):
        if labels_of(name) is None:
            yield Violation("runbook-page", alert, f"the output shows {name}, which is not declared")


def runbook_queries(text: str) -> Iterator[str]:
    """Queries of promql blocks and of curl commands in shell blocks of a page."""
    for language, body in _BLOCK.findall(text):
        if language == "promql":
            yield body
        elif language == "sh":
            # A variable of the reader's spliced into a quoted query ('"$RUN"') counts as a plain word.
            yield from _CURLED_QUERY.findall(re.sub(r"'\"\$\w+\"'", "x", body))
