"""A line per rank names its node too, and panels of many ranks show a bounded number of lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser

from rankwatch_alerts.lint import Finding
from rankwatch_alerts.lint.expressions import parse, result_labels
from rankwatch_dashboards.lint.targets import filled_in, targets

_BOUNDED = ("topk", "bottomk")


def series_names(dashboard: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings about legends and numbers of lines."""
    for each in targets(dashboard):
        legend = each.target.get("legendFormat", "")
        if not legend:
            yield Finding("series-names", each.where, "no legend")
        if "{{rank}}" in legend and "{{node}}" not in legend:
            yield Finding("series-names", each.where, "the legend names a rank without its node")
        tree = parse(filled_in(each.expression))
        many = result_labels(tree) & {"rank", "node"}
        bounded = isinstance(tree, promql_parser.AggregateExpr) and str(tree.op) in _BOUNDED
        if many and not bounded:
            yield Finding("series-names", each.where, "a line per rank or node without topk")
