"""The dashboard is Classic, read-only, has a short fixed uid, and panels and queries can be addressed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rankwatch_alerts.lint import Finding
from rankwatch_dashboards.lint.targets import panels, targets

LONGEST_UID = 40
_NOT_CLASSIC = ("elements", "layout", "__inputs", "__requires")


def identity(dashboard: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings about uid, ids and the kind of JSON."""
    uid = dashboard.get("uid", "")
    if not 0 < len(uid) <= LONGEST_UID:
        yield Finding("identity", uid, f"uid is not 1 to {LONGEST_UID} characters long")
    for key in _NOT_CLASSIC:
        if key in dashboard:
            yield Finding("identity", uid, f"{key} is not part of Classic JSON")
    if dashboard.get("editable") is not False:
        yield Finding("identity", uid, "the dashboard is editable; changes would be lost at the next import")
    ids = Counter(each.get("id") for each in panels(dashboard))
    for number, times in ids.items():
        if not number or times > 1:
            yield Finding("identity", uid, f"panel id {number} occurs {times} times")
    places = Counter(each.where for each in targets(dashboard))
    for place, times in places.items():
        if times > 1 or place.endswith("?"):
            yield Finding("identity", place, "refId is missing or occurs twice in the panel")
