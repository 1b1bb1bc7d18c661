"""Counters are read as rates or increases, gauges never are.

A raw counter says when the process started, the rate of a gauge takes each fall for a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rankwatch.conventions import METRICS, Kind
from rankwatch_alerts.lint.expressions import selectors
from rankwatch_alerts.lint.finding import Finding

_RATES = frozenset({"rate", "irate", "increase", "resets"})
_PRESENCE = frozenset({"present_over_time", "absent", "absent_over_time"})
_COUNTERS = frozenset(each.name for each in METRICS if each.kind is Kind.COUNTER) | frozenset(
    each.name + suffix
    for each in METRICS
    if each.kind is Kind.HISTOGRAM
    for suffix in ("_bucket", "_sum", "_count")
)


def counter_use(where: str, expression: Any, presence_of: frozenset[str] = frozenset()) -> Iterator[Finding]:
    """Findings for raw counters and rated gauges; `presence_of` names counters only asked for existence."""
    for each in selectors(expression):
        rated = each.function in _RATES
        if each.metric in _COUNTERS and not rated:
            if each.function not in _PRESENCE and each.metric not in presence_of:
                yield Finding("counter-use", where, f"counter {each.metric} without rate or increase")
        elif rated and each.metric not in _COUNTERS:
            yield Finding("counter-use", where, f"{each.function} of {each.metric}, which is no counter")
