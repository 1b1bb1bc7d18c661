"""The summary is one plain sentence, the description names who and what, the links are there."""

from __future__ import annotations

from collections.abc import Iterator

from rankwatch_alerts.lint.finding import Finding
from rankwatch_alerts.rules import AlertRule


def annotation_text(rule: AlertRule) -> Iterator[Finding]:
    """Findings for summaries, descriptions and links that help nobody."""
    summary = rule.annotations.get("summary", "")
    if "{{" in summary:
        yield Finding("annotation-text", rule.alert, "summary is templated; it must not change")
    if not summary[:1].isupper() or not summary.endswith("."):
        yield Finding("annotation-text", rule.alert, "summary is no sentence: capital first, full stop last")
    absence = rule.expression.startswith("absent(")
    if "{{" not in rule.annotations.get("description", "") and not absence:
        yield Finding("annotation-text", rule.alert, "description is not templated; it names no one")
    if not rule.annotations.get("runbook_url", "").endswith(f"/{rule.alert}"):
        yield Finding("annotation-text", rule.alert, "runbook_url does not end with the alert's name")
    if "/d/" not in rule.annotations.get("dashboard_url", ""):
        yield Finding("annotation-text", rule.alert, "dashboard_url names no dashboard")
