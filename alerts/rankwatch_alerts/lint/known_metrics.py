"""Every name in an expression is declared, and every label matched is one its metric carries.

A misspelt name is no error to Prometheus: the alert is silent and the panel empty, for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rankwatch_alerts.lint.expressions import labels_of, selectors
from rankwatch_alerts.lint.finding import Finding


def known_metrics(where: str, expression: Any) -> Iterator[Finding]:
    """Findings for undeclared metrics and labels."""
    for each in selectors(expression):
        labels = labels_of(each.metric)
        if labels is None:
            yield Finding("known-metrics", where, f"{each.metric or 'a nameless selector'} is not declared")
            continue
        for label in each.matched:
            if label not in labels:
                yield Finding("known-metrics", where, f"{each.metric} has no label {label}")
