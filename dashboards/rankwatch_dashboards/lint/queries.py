"""Every query parses, uses declared names, reads counters as rates over $__rate_interval, and chooses
its cluster by variable."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rankwatch_alerts.lint import Finding, check_expression
from rankwatch_alerts.lint.expressions import parse, selectors
from rankwatch_dashboards.lint.targets import filled_in, targets

_RATE_RANGE = re.compile(r"\b(?:irate|rate)\([^\[]*\[([^\]]*)\]")


def queries(dashboard: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings in the expressions."""
    for each in targets(dashboard):
        expression = filled_in(each.expression)
        faults = check_expression(each.where, expression)
        yield from faults
        for window in _RATE_RANGE.findall(each.expression):
            if window != "$__rate_interval":
                yield Finding("queries", each.where, f"rate over [{window}] instead of [$__rate_interval]")
        if any(fault.rule == "parses" for fault in faults):
            continue
        for selector in selectors(parse(expression)):
            if "cluster" not in selector.matched:
                yield Finding("queries", each.where, f"{selector.metric} is not limited to $cluster")
