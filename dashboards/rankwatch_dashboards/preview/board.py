"""The whole dashboard: its head, its rows, and each panel where the JSON puts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rankwatch_dashboards.preview.alert_list import alert_list
from rankwatch_dashboards.preview.bands import state_timeline, status_history
from rankwatch_dashboards.preview.bar_gauge import bar_gauge
from rankwatch_dashboards.preview.colours import BACKGROUND, BORDER, FAINT, PANEL, TEXT, hexadecimal
from rankwatch_dashboards.preview.content import Content, Event, in_the_middle, titled
from rankwatch_dashboards.preview.fields import BY_SERIES, styled
from rankwatch_dashboards.preview.frames import Frame
from rankwatch_dashboards.preview.queries import Source, View, answers, chosen
from rankwatch_dashboards.preview.shapes import Align, Box, Line, Place, Shape, Text, text_width
from rankwatch_dashboards.preview.stat import stat
from rankwatch_dashboards.preview.table import table
from rankwatch_dashboards.preview.timeseries import timeseries
from rankwatch_dashboards.preview.transformations import transformed

FORMS: dict[str, Callable[[Content], Iterator[Shape]]] = {
    "stat": stat,
    "table": table,
    "timeseries": timeseries,
    "state-timeline": state_timeline,
    "status-history": status_history,
    "bargauge": bar_gauge,
    "alertlist": alert_list,
}
"""By Grafana's name of the panel's type."""
WIDTH = 1440
_COLUMNS, _CELL, _GAP, _MARGIN, _HEAD = 24, 30.0, 8.0, 12.0, 52.0
_TITLE = 32.0
MARK = "preview, drawn from recorded data"


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A dashboard as shapes, and what of it could not be drawn."""

    shapes: tuple[Shape, ...]
    width: int
    height: int
    panels: int
    """How many panels were drawn."""
    empty: tuple[str, ...]
    """Titles of panels without data."""
    unknown: tuple[str, ...]
    """Forms of panels and transformations that are not known here, with the panel's title."""


def draw(dashboard: Mapping[str, Any], view: View, source: Source, rows: int | None = None) -> Drawing:
    """The panels outside of collapsed rows, or those of the first `rows` rows of the grid only."""
    panels = [each for each in dashboard["panels"] if rows is None or each["gridPos"]["y"] < rows]
    events = annotation_events(dashboard, view, source)
    bottom = max((each["gridPos"]["y"] + each["gridPos"]["h"] for each in panels), default=1)
    height = round(_HEAD + bottom * (_CELL + _GAP) + _MARGIN)
    shapes: list[Shape] = [Box(place=Place(x=0, y=0, width=WIDTH, height=height), fill=BACKGROUND)]
    shapes += _head(dashboard, view)
    empty: list[str] = []
    unknown: list[str] = []
    for panel in panels:
        place = _place(panel["gridPos"])
        if panel["type"] == "row":
            shapes.append(_row(panel, place))
            continue
        frames, missing = transformed(
            answers(panel, dashboard, view, source), panel.get("transformations") or ()
        )
        missing += [] if panel["type"] in FORMS else [f"form {panel['type']}"]
        unknown += [f"{panel.get('title')}: {each}" for each in missing]
        content = _content(panel, frames, place, view, events)
        if panel.get("targets") and not any(each.length for each in content.frames):
            empty.append(str(panel.get("title")))
        shapes += _panel(panel, place, content)
    return Drawing(
        shapes=(*shapes, _mark(height)),
        width=WIDTH,
        height=height,
        panels=sum(each["type"] != "row" for each in panels),
        empty=tuple(empty),
        unknown=tuple(unknown),
    )


def annotation_events(dashboard: Mapping[str, Any], view: View, source: Source) -> list[Event]:
    """Spans of each annotation's series in which it is there and not zero."""
    events = []
    for each in dashboard.get("annotations", {}).get("list", ()):
        if not each.get("enable") or not each.get("expr"):
            continue
        colour = hexadecimal(str(each.get("iconColor") or "red"))
        for series in source.series(view.filled_in(each["expr"], dashboard), view):
            moments = [float(moment) for moment, value in series["values"] if float(value) != 0]
            events += [
                Event(start=start, end=end, colour=colour)
                for start, end in _spans(moments, view.step_seconds)
            ]
    return events


def _spans(moments: Sequence[float], step: float) -> Iterator[tuple[float, float]]:
    start = previous = None
    for moment in moments:
        if start is None or previous is None or moment - previous > step * 1.5:
            if start is not None and previous is not None:
                yield start, previous
            start = moment
        previous = moment
    if start is not None and previous is not None:
        yield start, previous


def _content(
    panel: Mapping[str, Any], frames: Sequence[Frame], place: Place, view: View, events: Sequence[Event]
) -> Content:
    mode = BY_SERIES if panel["type"] == "timeseries" else "thresholds"
    return Content(
        panel=panel,
        frames=frames,
        styles=styled(panel, frames, view.end, mode),
        place=place.inside(1, _TITLE if panel.get("title") else 4, 1, 2),
        start=view.start,
        end=view.end,
        step_seconds=view.step_seconds,
        events=events,
    )


def _panel(panel: Mapping[str, Any], place: Place, content: Content) -> Iterator[Shape]:
    if not panel.get("transparent"):
        yield Box(place=place, fill=PANEL, edge=BORDER)
    yield from titled(place, str(panel.get("title") or ""), TEXT)
    form = FORMS.get(panel["type"])
    if form:
        yield from form(content)
    else:
        yield in_the_middle(content.place, f"no preview of the form {panel['type']}")


def _place(grid: Mapping[str, int]) -> Place:
    """A place of the grid in pixels, with Grafana's cells of 30 pixels and gaps of 8."""
    column = (WIDTH - 2 * _MARGIN + _GAP) / _COLUMNS
    return Place(
        x=_MARGIN + grid["x"] * column,
        y=_HEAD + grid["y"] * (_CELL + _GAP),
        width=grid["w"] * column - _GAP,
        height=grid["h"] * (_CELL + _GAP) - _GAP,
    )


def _row(panel: Mapping[str, Any], place: Place) -> Text:
    inside = panel.get("panels") or ()
    count = f"   ({len(inside)} panels)" if panel.get("collapsed") else ""
    arrow = ">" if panel.get("collapsed") else "v"
    text = f"{arrow}  {panel.get('title', '')}{count}"
    return Text(x=place.x + 4, y=place.y + place.height / 2, text=text, size=16, colour=TEXT)


def _head(dashboard: Mapping[str, Any], view: View) -> Iterator[Shape]:
    """Title, variables with their values, annotations, and the time range."""
    title = str(dashboard.get("title", ""))
    yield Text(x=_MARGIN, y=26, text=title, size=18, bold=True)
    x = _MARGIN + text_width(title, 20) + 30
    values = chosen(dashboard, view.values)
    for each in dashboard.get("templating", {}).get("list", ()):
        if each["type"] == "datasource" or each.get("hide"):
            continue
        value = (
            values[each["name"]] if each["name"] in view.values else "All" if each.get("includeAll") else ""
        )
        name = str(each.get("label") or each["name"])
        width = text_width(f"{name} {value}", 12) + 24
        box = Place(x=x, y=13, width=width, height=26)
        yield Box(place=box, fill=PANEL, edge=BORDER)
        yield Text(x=x + 8, y=26, text=name, colour=FAINT)
        yield Text(x=x + 14 + text_width(name, 12), y=26, text=value, colour=TEXT)
        x += width + 8
    yield from _annotations(dashboard, x + 8)
    form = "%Y-%m-%d %H:%M:%S"
    start, end = (datetime.fromtimestamp(each, UTC).strftime(form) for each in (view.start, view.end))
    span = f"{start} to {end[11:]} UTC"
    yield Text(x=WIDTH - _MARGIN, y=20, text=span, colour=FAINT, align=Align.RIGHT)


def _annotations(dashboard: Mapping[str, Any], x: float) -> Iterator[Shape]:
    """The names of those that panels show, each beside its line."""
    for each in dashboard.get("annotations", {}).get("list", ()):
        if each.get("enable") and each.get("expr"):
            colour = hexadecimal(str(each.get("iconColor") or "red"))
            yield Line(points=((x, 17), (x, 35)), colour=colour, dashed=True)
            yield Text(x=x + 6, y=26, text=each["name"], colour=FAINT)
            x += text_width(each["name"], 12) + 24


def _mark(height: int) -> Text:
    """Says in a corner what the picture is, so that nobody takes it for a screenshot."""
    return Text(x=WIDTH - _MARGIN, y=38, text=MARK, size=11, colour=FAINT, align=Align.RIGHT)
