"""The explicit list of lint rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rankwatch_alerts.lint import Finding
from rankwatch_dashboards.lint.datasources import datasources
from rankwatch_dashboards.lint.identity import identity
from rankwatch_dashboards.lint.layout import layout
from rankwatch_dashboards.lint.panel_texts import panel_texts
from rankwatch_dashboards.lint.queries import queries
from rankwatch_dashboards.lint.series_names import series_names
from rankwatch_dashboards.lint.variables import variables

CHECKS: tuple[Callable[[Mapping[str, Any]], Iterator[Finding]], ...] = (
    identity,
    layout,
    panel_texts,
    datasources,
    variables,
    queries,
    series_names,
)


def check_dashboard(dashboard: Mapping[str, Any]) -> list[Finding]:
    """Findings of all rules in one dashboard."""
    return [finding for check in CHECKS for finding in check(dashboard)]
