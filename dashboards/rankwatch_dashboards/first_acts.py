"""What to do first about each alert, in the words of its description."""

from __future__ import annotations

from collections.abc import Collection

from rankwatch_alerts import ALERT_NAMES, RuleConfig, alert_rules
from rankwatch_dashboards.words import Words

LABELS = '"alertname", "reason"'
"""Joined by a space, they are what the patterns match."""


def first_acts(config: RuleConfig, alerts: Collection[str] = ALERT_NAMES) -> Words:
    """By patterns of alert and reason, those with a reason first.

    Each matches all of its text, because Grafana replaces only what matches.
    """
    found: dict[str, str] = {}
    rules = alert_rules(config)
    for alert in alerts:
        acts = {
            reason: act for rule in rules if rule.alert == alert for reason, act in rule.first_acts.items()
        }
        same = len(set(acts.values())) == 1
        for reason, act in sorted(acts.items(), key=lambda each: (each[0] == "", each[0])):
            found.setdefault(f"/^{alert} {'' if same else reason}", act)
    patterns = {f"{start}{'.*' if start.endswith(' ') else ''}$/": act for start, act in found.items()}
    return {**patterns, "/^Rankwatch.*$/": "See its runbook"}
