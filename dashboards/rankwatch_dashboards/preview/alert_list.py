"""Lists of alerts: in Grafana those of all rules, here those that the recording holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rankwatch_dashboards.preview.colours import FAINT, TEXT, hexadecimal, readable_on
from rankwatch_dashboards.preview.content import Content, in_the_middle
from rankwatch_dashboards.preview.frames import STRING
from rankwatch_dashboards.preview.shapes import Box, Shape, Text, fitted

_HEIGHT, _HIDDEN = 38.0, frozenset({"__name__", "alertname", "alertstate", "product"})


def targets(panel: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The queries of a panel; of a list of alerts, one for the alerts that it lists."""
    if panel["type"] != "alertlist":
        return list(panel.get("targets", ()))
    matchers = panel["options"]["alertInstanceLabelFilter"].strip("{}")
    expression = f'{{__name__=~"ALERTS|GRAFANA_ALERTS", alertstate="firing", {matchers}}}'
    return [{"refId": "A", "expr": expression, "instant": True, "format": "table"}]


def alert_list(content: Content) -> Iterator[Shape]:
    """Each alert with its labels, or how many there are."""
    alerts = [
        {each.name: each.values[row] for each in frame.fields if each.kind == STRING and each.values[row]}
        for frame in content.frames
        for row in range(frame.length)
    ]
    if content.option("viewMode") == "stat":
        yield from _count(content, len(alerts))
    elif not alerts:
        yield in_the_middle(content.place, "No alerts matching filters")
    for number, labels in enumerate(alerts if content.option("viewMode") == "list" else ()):
        x, y = content.place.x + 12, content.place.y + number * _HEIGHT
        if y + _HEIGHT > content.place.bottom:
            return
        rest = " ".join(f"{name}={value}" for name, value in labels.items() if name not in _HIDDEN)
        yield Text(x=x, y=y + 10, text=f"firing  {labels['alertname']}", size=13, colour=TEXT)
        yield Text(x=x, y=y + 26, text=fitted(rest, 11, content.place.width - 20), size=11, colour=FAINT)


def _count(content: Content, count: int) -> Iterator[Shape]:
    steps = content.option("statThresholds", "steps") or ()
    fill = hexadecimal([each["color"] for each in steps if (each["value"] or 0) <= count][-1])
    texts = (each["options"].get(f"{count}", {}) for each in content.option("statValueMappings") or ())
    text = next((each["text"] for each in texts if each), f"{count}")
    yield Box(place=content.place.inside(2, 2, 2, 2), fill=fill)
    yield in_the_middle(content.place, text, readable_on(fill), 38)
