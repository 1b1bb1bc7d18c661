"""Heat maps: rows of buckets or of series over time, darker to brighter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rankwatch_dashboards.preview.colours import FAINT, PANEL, hexadecimal, mixed, on_scale
from rankwatch_dashboards.preview.content import Content, in_the_middle
from rankwatch_dashboards.preview.scale import Scale, scale_of
from rankwatch_dashboards.preview.shapes import Align, Box, Place, Shape, Text, fitted, text_width
from rankwatch_dashboards.preview.time_axis import HEIGHT, across, marked_events, time_axis
from rankwatch_dashboards.preview.units import written

_LEGEND = 26.0
_BUCKETS = 20
"""Rows of a calculated heat map that says nothing of them."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Rows from below with their names, and the value of each cell by row and moment."""

    rows: tuple[str, ...]
    cells: dict[tuple[int, float], float]
    step_seconds: float


def heatmap(content: Content) -> Iterator[Shape]:
    """Cells, axes, and the scale of colours."""
    made = grid(content)
    if not made.cells:
        yield in_the_middle(content.place, content.no_data)
        return
    below = HEIGHT + (_LEGEND if content.option("legend", "show") is not False else 4)
    left = min(max(text_width(each, 11) for each in made.rows) + 16, content.place.width * 0.3)
    plot = content.place.inside(left + 4, 4, 12, below)
    height = plot.height / len(made.rows)
    yield from time_axis(content, plot, grid=False)
    every = max(math.ceil(14 / height), 1)
    for number, name in enumerate(made.rows):
        if number % every == 0:
            y = plot.bottom - (number + 0.5) * height
            text = fitted(name, 11, left)
            yield Text(x=plot.x - 8, y=y, text=text, size=11, colour=FAINT, align=Align.RIGHT)
    scale = _colour_range(content, made)
    gap = float(content.option("cellGap") if content.option("cellGap") is not None else 1)
    for (row, moment), value in made.cells.items():
        start = max(across(content, plot, moment - made.step_seconds), plot.x)
        end = min(across(content, plot, moment), plot.right)
        if end > start:
            cell = Place(x=start, y=plot.bottom - (row + 1) * height, width=end - start, height=height)
            yield Box(place=cell.inside(0, gap / 2, gap, gap / 2), fill=_colour(content, scale.share(value)))
    yield from marked_events(content, plot)
    if content.option("legend", "show") is not False:
        yield from _scale_of_colours(content, scale)


def grid(content: Content) -> Grid:
    """What the panel's options make of its series: counts per bucket, or a row per series."""
    if content.option("calculate"):
        return _calculated(content)
    rows = [(content.style(field).title, frame, field) for frame, field in content.series]
    targets = content.panel.get("targets") or ()
    if any(each.get("format") == "heatmap" for each in targets):
        return _of_histogram(content)
    cells = {
        (number, moment): value
        for number, (_, frame, field) in enumerate(rows)
        for moment, value in zip(frame.moments, field.values, strict=True)
        if _is_shown(content, value)
    }
    return Grid(rows=tuple(name for name, _, _ in rows), cells=cells, step_seconds=content.step_seconds)


def _is_shown(content: Content, value: float | None) -> bool:
    low = content.option("filterValues", "le")
    low = 1e-9 if low is None else low
    return value is not None and math.isfinite(value) and not (low > 0 and abs(value) <= low)


def _of_histogram(content: Content) -> Grid:
    """Cumulative buckets with a label `le`, each less the one below it."""
    series = sorted(content.series, key=lambda each: float(each[1].labels.get("le", "inf")))
    unit = str(content.option("yAxis", "unit") or "")
    cells, below = {}, dict[float, float]()
    for number, (frame, field) in enumerate(series):
        for moment, value in zip(frame.moments, field.values, strict=True):
            count = value - below.get(moment, 0.0)
            below[moment] = value
            if _is_shown(content, count):
                cells[number, moment] = count
    names = (written(float(field.labels.get("le", "inf")), unit) for _, field in series)
    return Grid(rows=tuple(names), cells=cells, step_seconds=content.step_seconds)


def _calculated(content: Content) -> Grid:
    samples = [
        (moment, value)
        for frame, field in content.series
        for moment, value in zip(frame.moments, field.values, strict=True)
        if value is not None and math.isfinite(value)
    ]
    if not samples:
        return Grid(rows=(), cells={}, step_seconds=content.step_seconds)
    scale = scale_of([value for _, value in samples])
    count, low, size = _buckets(content, scale)
    cells: dict[tuple[int, float], float] = {}
    for moment, value in samples:
        key = (min(max(int((value - low) / size), 0), count - 1), moment)
        cells[key] = cells.get(key, 0.0) + 1
    unit = str(content.option("yAxis", "unit") or "")
    names = tuple(written(low + number * size, unit) for number in range(count))
    return Grid(rows=names, cells=cells, step_seconds=content.step_seconds)


def _buckets(content: Content, scale: Scale) -> tuple[int, float, float]:
    """How many rows, where the lowest begins, and how high each is."""
    given: Any = content.option("calculation", "yBuckets") or {}
    if given.get("mode", "size") == "size" and given.get("value"):
        size = float(given["value"])
    else:
        size = (scale.high - scale.low) / float(given.get("value") or _BUCKETS)
    low = math.floor(scale.low / size) * size
    return max(math.ceil((scale.high - low) / size), 1), low, size


def _colour_range(content: Content, made: Grid) -> Scale:
    values = made.cells.values()
    low, high = content.option("color", "min"), content.option("color", "max")
    low = float(min(values) if low is None else low)
    high = float(max(values) if high is None else high)
    return replace(scale_of([low, high]), low=low, high=high if high > low else low + 1)


def _colour(content: Content, share: float) -> str:
    share = min(max(share, 0.0), 1.0)
    exponent = float(content.option("color", "exponent") or 0.5)
    if content.option("color", "mode") == "opacity":
        return mixed(PANEL, hexadecimal(content.option("color", "fill") or "dark-orange"), share**exponent)
    if content.option("color", "reverse"):
        share = 1 - share
    return on_scale(str(content.option("color", "scheme") or "Oranges"), share)


def _scale_of_colours(content: Content, scale: Scale) -> Iterator[Shape]:
    bar = Place(
        x=content.place.x + 60, y=content.place.bottom - 18, width=min(220, content.place.width / 2), height=8
    )
    for number in range(22):
        part = Place(x=bar.x + bar.width * number / 22, y=bar.y, width=bar.width / 22, height=bar.height)
        yield Box(place=part, fill=_colour(content, number / 21))
    unit = _cell_unit(content)
    for value, x, align in ((scale.low, bar.x - 6, Align.RIGHT), (scale.high, bar.right + 6, Align.LEFT)):
        yield Text(x=x, y=bar.y + 4, text=written(value, unit), size=11, colour=FAINT, align=align)


def _cell_unit(content: Content) -> str:
    """The unit of a cell: counts have none."""
    given = content.option("cellValues", "unit")
    targets = content.panel.get("targets") or ()
    counts = content.option("calculate") or any(each.get("format") == "heatmap" for each in targets)
    if given or counts:
        return str(given or "")
    return str(((content.panel.get("fieldConfig") or {}).get("defaults") or {}).get("unit") or "")
