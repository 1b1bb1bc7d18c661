"""The queries of a dashboard: variables filled in, asked of a Prometheus, answered as frames."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rankwatch_dashboards.preview.alert_list import targets as asked
from rankwatch_dashboards.preview.frames import Frame, series_frames, table_frame

_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))|\[\[(\w+)\]\]")
_SECONDS_TO_ANSWER = 60.0


@dataclass(frozen=True, kw_only=True)
class View:
    """What is shown: when, and which values the variables have."""

    start: float
    """Seconds since 1970."""
    end: float
    step_seconds: float
    """Time between two points, and $__interval."""
    rate_seconds: float
    """$__rate_interval."""
    values: Mapping[str, str]
    """Chosen values of variables; the others have what the dashboard offers as `All` or as first value."""

    def filled_in(self, text: str, dashboard: Mapping[str, Any]) -> str:
        """A query or a text with the variables replaced as Grafana does it."""
        known = {**self._built_in(), **chosen(dashboard, self.values)}
        return _VARIABLE.sub(lambda found: known.get(found[1] or found[2] or found[3], found[0]), text)

    def _built_in(self) -> dict[str, str]:
        seconds = round(self.end - self.start)
        return {
            "__rate_interval": f"{self.rate_seconds:g}s",
            "__interval": f"{self.step_seconds:g}s",
            "__interval_ms": f"{self.step_seconds * 1000:g}",
            "__range": f"{seconds}s",
            "__range_s": f"{seconds}",
            "__range_ms": f"{seconds * 1000}",
            "__from": f"{self.start * 1000:.0f}",
            "__to": f"{self.end * 1000:.0f}",
        }


def chosen(dashboard: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, str]:
    """Each variable of a dashboard with its value: as chosen, else All, else its current or only one."""
    found = {}
    for each in dashboard.get("templating", {}).get("list", ()):
        current = each.get("current", {}).get("value")
        if each.get("includeAll"):
            value = each.get("allValue") or ".*"
        elif isinstance(current, str) and current:
            value = current
        else:
            value = str(each.get("query", "")) if each.get("type") != "query" else ".+"
        found[each["name"]] = values.get(each["name"], value)
    return found


class Source(Protocol):
    """Whoever answers queries: a Prometheus, or a test."""

    def series(self, expression: str, view: View, *, instant: bool = False) -> list[dict[str, Any]]:
        """The series over the time range, or at its end, as the HTTP interface of Prometheus gives them."""
        ...


def answers(
    panel: Mapping[str, Any], dashboard: Mapping[str, Any], view: View, source: Source
) -> list[Frame]:
    """The frames of all queries of a panel. Raises OSError where one is refused."""
    targets = [each for each in asked(panel) if not each.get("hide")]
    frames: list[Frame] = []
    for target in targets:
        instant = bool(target.get("instant")) and not target.get("range")
        series = source.series(view.filled_in(target["expr"], dashboard), view, instant=instant)
        if target.get("format") == "table":
            frames += [table_frame(target, series, len(targets) > 1)] if series else []
        else:
            frames += series_frames(target, series)
    return frames


@dataclass(frozen=True, kw_only=True)
class Prometheus:
    """A Prometheus that is asked over HTTP."""

    url: str

    def series(self, expression: str, view: View, *, instant: bool = False) -> list[dict[str, Any]]:
        """Raises OSError where Prometheus cannot be reached or refuses the query."""
        if instant:
            return self._answer("query", {"query": expression, "time": f"{view.end}"})
        span = {"start": f"{view.start}", "end": f"{view.end}", "step": f"{view.step_seconds}"}
        return self._answer("query_range", {"query": expression, **span})

    def _answer(self, path: str, asked: Mapping[str, str]) -> list[dict[str, Any]]:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=_SECONDS_TO_ANSWER) as answer:
                data = json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise OSError(f"Prometheus refuses {asked['query']}: {refused.read().decode()}") from refused
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        series: list[dict[str, Any]] = data["result"]
        return series
