"""State timelines and status histories: a row of coloured cells per series, over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rankwatch_dashboards.preview.colours import GRID, hexadecimal, readable_on
from rankwatch_dashboards.preview.content import Content, in_the_middle, legend_items
from rankwatch_dashboards.preview.fields import Look, Style
from rankwatch_dashboards.preview.frames import TIME, Field
from rankwatch_dashboards.preview.shapes import Align, Box, Line, Place, Shape, Text, fitted, text_width
from rankwatch_dashboards.preview.time_axis import HEIGHT, across, marked_events, time_axis
from rankwatch_dashboards.preview.units import written

_LEGEND_LINE = 22.0
_WIDEST_NAME = 0.3
"""Share of the panel that the names of the rows may take."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A span of time with one state."""

    start: float
    end: float
    look: Look


def state_timeline(content: Content) -> Iterator[Shape]:
    """Neighbouring cells of the same state are one."""
    return _drawn(content, merged=content.option("mergeValues") is not False, gap=0.0)


def status_history(content: Content) -> Iterator[Shape]:
    """Each sample is a cell of its own."""
    return _drawn(content, merged=False, gap=1.0)


def cells(content: Content, field: Field, moments: tuple[float, ...], merged: bool) -> list[Cell]:
    """The states of a row. A state lasts to the next sample, at most one and a half steps.

    Where cells are not merged, the sample is in the middle of its cell."""
    made: list[Cell] = []
    earlier = 0.0 if merged else content.step_seconds / 2
    style = content.style(field)
    for at, (moment, value) in enumerate(zip(moments, field.values, strict=True)):
        if value is None:
            continue
        following = moments[at + 1] if at + 1 < len(moments) else moment + content.step_seconds
        end = min(following, moment + content.step_seconds * 1.5, content.end + content.step_seconds)
        look = style.look(value)
        if merged and made and made[-1].look == look and made[-1].end >= moment:
            made[-1] = Cell(start=made[-1].start, end=end, look=look)
        else:
            made.append(Cell(start=moment - earlier, end=end - earlier, look=look))
    return made


def _rows(content: Content) -> list[tuple[tuple[float, ...], Field]]:
    return [
        (frame.moments, field)
        for frame in content.frames
        for field in frame.fields
        if field.kind != TIME and frame.moments
    ]


def _drawn(content: Content, merged: bool, gap: float) -> Iterator[Shape]:
    rows = _rows(content)
    if not rows:
        yield in_the_middle(content.place, content.no_data)
        return
    items = _legend(content, rows[0][1]) if content.option("legend", "showLegend") is not False else []
    names = [content.style(field).title for _, field in rows]
    left = min(max(text_width(each, 12) for each in names) + 16, content.place.width * _WIDEST_NAME)
    below = HEIGHT + (_LEGEND_LINE if items else 0)
    plot = content.place.inside(left + 8, 4, 12, below + 4)
    height = plot.height / len(rows)
    share = float(content.option("rowHeight") or 0.9)
    yield from time_axis(content, plot, grid=False)
    for number, (moments, field) in enumerate(rows):
        band = Place(x=plot.x, y=plot.y + number * height, width=plot.width, height=height)
        if height >= 11 or number % max(round(11 / height), 1) == 0:
            name = fitted(names[number], 12, left - 12)
            middle = band.y + height / 2
            yield Text(x=plot.x - 8, y=middle, text=name, size=min(12, max(height, 9)), align=Align.RIGHT)
        inner = band.inside(top=height * (1 - share) / 2, bottom=height * (1 - share) / 2)
        yield from _row(content, cells(content, field, moments, merged), inner, plot, gap)
    yield Line(points=((plot.x, plot.bottom), (plot.right, plot.bottom)), colour=GRID)
    yield from marked_events(content, plot)
    legend = content.place.inside(left=8, top=content.place.height - _LEGEND_LINE)
    for x, y, name, colour in legend_items(items, legend):
        yield Box(place=Place(x=x, y=y - 2, width=14, height=4), fill=colour)
        yield Text(x=x + 18, y=y, text=name)


def _row(content: Content, row: list[Cell], band: Place, plot: Place, gap: float) -> Iterator[Shape]:
    shown = content.option("showValue") or "auto"
    for each in row:
        start = max(across(content, plot, each.start), plot.x)
        end = min(across(content, plot, each.end), plot.right)
        if end <= start:
            continue
        place = Place(x=start, y=band.y, width=max(end - start - gap, 1.0), height=band.height)
        yield Box(place=place, fill=each.look.colour)
        fits = text_width(each.look.text, 12) + 6 <= place.width and band.height >= 12
        if shown != "never" and (fits or shown == "always"):
            colour = readable_on(each.look.colour)
            yield in_the_middle(place, each.look.text, colour, 12)


def _legend(content: Content, field: Field) -> list[tuple[str, str]]:
    """Names and colours: of the mappings, else of the thresholds, else none."""
    style = content.style(field)
    mapped = [each for one in style.config.get("mappings") or () for each in _results(one)]
    if mapped:
        return list(dict.fromkeys((text, hexadecimal(colour)) for text, colour in mapped))
    return _threshold_items(style)


def _results(mapping: dict[str, Any]) -> Iterator[tuple[str, str]]:
    options = mapping.get("options") or {}
    results = options.values() if mapping["type"] == "value" else [options.get("result") or {}]
    for each in results:
        if each.get("text") and each.get("color"):
            yield each["text"], each["color"]


def _threshold_items(style: Style) -> list[tuple[str, str]]:
    steps, unit = style.thresholds(), style.config.get("unit") or ""
    if len(steps) < 2 or (style.config.get("color") or {}).get("mode", style.colour_mode) != "thresholds":
        return []
    first = written(steps[1][0] or 0.0, unit)
    rest = [(f"{written(limit or 0.0, unit)}+", hexadecimal(colour)) for limit, colour in steps[1:]]
    return [(f"< {first}", hexadecimal(steps[0][1])), *rest]
