"""Panels lie within 24 columns and do not overlap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from rankwatch_alerts.lint import Finding

COLUMNS = 24


def layout(dashboard: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings about places on the grid."""
    uid = dashboard["uid"]
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        if place["x"] < 0 or place["x"] + place["w"] > COLUMNS:
            yield Finding("layout", uid, f"{panel['title']} does not fit into {COLUMNS} columns")
    for one, other in combinations(dashboard["panels"], 2):
        if _overlap(one["gridPos"], other["gridPos"]):
            yield Finding("layout", uid, f"{one['title']} and {other['title']} overlap")


def _overlap(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
    return across and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]
