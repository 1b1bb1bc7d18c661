"""Queries inside templates parse and use declared names, like any other expression."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankwatch_alerts.lint.counter_use import counter_use
from rankwatch_alerts.lint.expressions import parse
from rankwatch_alerts.lint.finding import Finding
from rankwatch_alerts.lint.known_metrics import known_metrics
from rankwatch_alerts.rules import AlertRule

_QUERY = re.compile(r"printf `([^`]*)`")


def template_queries(rule: AlertRule) -> Iterator[Finding]:
    """Findings in the queries of a rule's annotations."""
    for annotation, text in rule.annotations.items():
        for query in _QUERY.findall(text):
            where = f"{rule.alert} {annotation}"
            try:
                tree = parse(query.replace("%q", '"x"'))
            except ValueError as error:
                yield Finding("template-queries", where, f"does not parse: {error}")
                continue
            yield from known_metrics(where, tree)
            yield from counter_use(where, tree)
