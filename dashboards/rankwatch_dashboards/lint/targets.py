"""The queries of a dashboard, and their text with Grafana's variables filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_BUILT_IN = {"__rate_interval": "1m", "__interval": "15s", "__range": "1h"}


class Target(NamedTuple):
    """One query; `where` is uid, panel id and refId, the only key that is unique."""

    where: str
    panel: Mapping[str, Any]
    target: Mapping[str, Any]

    @property
    def expression(self) -> str:
        """The query as written in the dashboard."""
        return str(self.target["expr"])


def panels(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All panels, rows included, those inside collapsed rows too."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


def drawn(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All panels that draw something."""
    return (each for each in panels(dashboard) if each["type"] != "row")


def targets(dashboard: Mapping[str, Any]) -> Iterator[Target]:
    """All queries of all panels."""
    for panel in drawn(dashboard):
        for target in panel.get("targets", ()):
            yield Target(f"{dashboard['uid']}/{panel['id']}/{target.get('refId', '?')}", panel, target)


def filled_in(expression: str, values: Mapping[str, str] | None = None) -> str:
    """The expression with variables replaced: by `values`, or by what matches everything."""
    known = {**_BUILT_IN, **(values or {})}
    return VARIABLE.sub(lambda found: known.get(found[1] or found[2], ".*"), expression)
