"""What to do first about each alert, in the words of its description."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby

from rankwatch_alerts import ALERT_NAMES, RuleConfig, alert_groups
from rankwatch_alerts.rules import AlertRule
from rankwatch_dashboards.words import SUSPICIONS, Words

AS_CAUSE = "cause"
"""In the place of the severity, where an alert is the cause of another one."""
LABELS = '"alertname", "severity", "reason"'
"""Joined by spaces, they are what the patterns match."""
_CAUSES = frozenset(SUSPICIONS)


def first_acts(config: RuleConfig, alerts: Collection[str] = ALERT_NAMES) -> Words:
    """By patterns of alert, severity and reason, those with a reason first.

    Each matches all of its text, because Grafana replaces only what matches.
    """
    all_rules = (rule for group in alert_groups(config) for rule in group.rules)
    rules = [rule for rule in all_rules if isinstance(rule, AlertRule) and rule.alert in alerts]
    rules.sort(key=lambda rule: (rule.alert, rule.severity))
    found: dict[str, str] = {}
    for (alert, severity), group in groupby(rules, key=lambda rule: (rule.alert, rule.severity)):
        alike = sorted(group, key=lambda rule: rule.labels.get("reason", ""), reverse=True)
        same = len({rule.first_act for rule in alike}) == 1
        for rule in alike:
            reason = "" if same else rule.labels.get("reason", "")
            found[f"/^{alert} {severity} {reason or '.*'}$/"] = rule.first_act
            if alert in _CAUSES:
                found.setdefault(f"/^{alert} {AS_CAUSE} $/", rule.first_act)
    return {pattern: act for pattern, act in found.items() if act}
