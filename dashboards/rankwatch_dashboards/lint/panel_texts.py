"""Every panel has a title, a description worth reading, a unit, a query, and no Angular type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rankwatch_alerts.lint import Finding
from rankwatch_dashboards.lint.targets import drawn

SHORTEST_DESCRIPTION = 40
_ANGULAR = frozenset({"graph", "singlestat", "table-old"})


def panel_texts(dashboard: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings about what a panel tells its reader."""
    for panel in drawn(dashboard):
        where = f"{dashboard['uid']}/{panel['id']}"
        if panel["type"] in _ANGULAR:
            yield Finding("panel-texts", where, f"type {panel['type']} is gone since Grafana 12")
        if not panel.get("title"):
            yield Finding("panel-texts", where, "no title")
        if len(panel.get("description", "")) < SHORTEST_DESCRIPTION:
            yield Finding("panel-texts", where, "no description that says what is bad and what to do")
        if not panel.get("fieldConfig", {}).get("defaults", {}).get("unit"):
            yield Finding("panel-texts", where, "no unit")
        if not panel.get("targets"):
            yield Finding("panel-texts", where, "no query")
