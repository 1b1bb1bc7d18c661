"""The explicit lists of lint rules."""

from __future__ import annotations

from rankwatch_alerts.alerting.telemetry_absent import OF_RANKS_THAT_HAD_THEM, OF_RUNNING_RANKS
from rankwatch_alerts.lint.annotation_labels import annotation_labels
from rankwatch_alerts.lint.annotation_text import annotation_text
from rankwatch_alerts.lint.counter_use import counter_use
from rankwatch_alerts.lint.expressions import parse
from rankwatch_alerts.lint.finding import Finding
from rankwatch_alerts.lint.known_metrics import known_metrics
from rankwatch_alerts.lint.runbook_page import runbook_page
from rankwatch_alerts.lint.template_queries import template_queries
from rankwatch_alerts.names import Alert
from rankwatch_alerts.recording.stall_culprits import EVER_ASKED, SILENT
from rankwatch_alerts.rules import AlertRule, RecordingRule


def check_expression(where: str, expression: str, presence_of: frozenset[str] = frozenset()) -> list[Finding]:
    """Findings in one expression; `presence_of` names counters only asked for their existence."""
    try:
        tree = parse(expression)
    except ValueError as error:
        return [Finding("parses", where, f"does not parse: {error}")]
    return [*known_metrics(where, tree), *counter_use(where, tree, presence_of)]


def check_record(rule: RecordingRule) -> list[Finding]:
    """Findings in one recording rule."""
    asked = EVER_ASKED if rule.record == SILENT else frozenset[str]()
    return check_expression(rule.record, rule.expression, asked)


def check_alert(rule: AlertRule) -> list[Finding]:
    """Findings in one alerting rule: expression, annotations and the queries inside them."""
    absence = rule.alert == Alert.TELEMETRY_ABSENT
    asked = frozenset((*OF_RUNNING_RANKS, *OF_RANKS_THAT_HAD_THEM)) if absence else frozenset[str]()
    return [
        *check_expression(rule.alert, rule.expression, asked),
        *annotation_labels(rule),
        *annotation_text(rule),
        *template_queries(rule),
    ]


def check_runbook(alert: str, text: str) -> list[Finding]:
    """Findings in the runbook of one alert."""
    return list(runbook_page(alert, text))
