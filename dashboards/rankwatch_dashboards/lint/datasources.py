"""Panels, queries and variables use the data source variable, so that the dashboard works anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rankwatch_alerts.lint import Finding
from rankwatch_dashboards.lint.targets import drawn, targets

_VARIABLE = "${datasource}"


def datasources(dashboard: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings about fixed or missing data sources."""
    for panel in drawn(dashboard):
        if panel.get("datasource", {}).get("uid") != _VARIABLE:
            yield Finding("datasources", f"{dashboard['uid']}/{panel['id']}", "not the data source variable")
    for each in targets(dashboard):
        if each.target.get("datasource", {}).get("uid") != _VARIABLE:
            yield Finding("datasources", each.where, "not the data source variable")
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query" and variable.get("datasource", {}).get("uid") != _VARIABLE:
            yield Finding("datasources", variable["name"], "not the data source variable")
