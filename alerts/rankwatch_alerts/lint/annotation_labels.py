"""A template may only name labels that the expression yields: promtool renders others as nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankwatch_alerts.lint.expressions import parse, result_labels
from rankwatch_alerts.lint.finding import Finding
from rankwatch_alerts.rules import AlertRule

_NAMED = re.compile(r"\$labels\.(\w+)")


def annotation_labels(rule: AlertRule) -> Iterator[Finding]:
    """Findings for labels in annotations that the alert does not have."""
    present = result_labels(parse(rule.expression)) | set(rule.labels) | {"severity"}
    for annotation, text in rule.annotations.items():
        for label in sorted(set(_NAMED.findall(text)) - present):
            yield Finding(
                "annotation-labels", rule.alert, f"{annotation} names label {label}, which the alert lacks"
            )
