"""Legends of time series: a list or a table, below the plot or beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankwatch_dashboards.preview.colours import FAINT, GRID, LINK, TEXT
from rankwatch_dashboards.preview.content import Content, legend_items
from rankwatch_dashboards.preview.fields import Style
from rankwatch_dashboards.preview.frames import Field
from rankwatch_dashboards.preview.reducers import REDUCER_NAMES, reduced
from rankwatch_dashboards.preview.shapes import Align, Box, Line, Place, Shape, Text, fitted

_LINE = 22.0
_LARGEST_SHARE = 0.35
"""Of the height that a legend below the plot may take, as in Grafana."""
_COLUMN = 90.0

_USUAL_WIDTH = 140.0
"""Of a name in a list, such as "rank 12 on node-a"."""


def legend_place(content: Content, count: int) -> Place | None:
    """Where the legend stands; None where the panel has none."""
    if not count or not content.option("legend", "showLegend"):
        return None
    if content.option("legend", "displayMode") == "hidden":
        return None
    place = content.place.inside(8, 0, 8, 4)
    if content.option("legend", "placement") == "right":
        width = float(content.option("legend", "width") or place.width * 0.3)
        return Place(x=place.right - width, y=place.y, width=width, height=place.height)
    in_a_line = max(int(place.width / _USUAL_WIDTH), 1)
    lines = count + 1 if content.option("legend", "displayMode") == "table" else -(-count // in_a_line)
    height = min(lines * _LINE, max(place.height * _LARGEST_SHARE, _LINE))
    return Place(x=place.x, y=place.bottom - height, width=place.width, height=height)


def legend(content: Content, fields: Sequence[Field], place: Place) -> Iterator[Shape]:
    """The names of the series with their colours and calculations, as many as fit."""
    named = [(field, content.style(field)) for field in fields]
    if content.option("legend", "displayMode") == "table":
        yield from _table(content, named, place)
        return
    items = [(style.title, _colour(style)) for _, style in named]
    if content.option("legend", "placement") == "right":
        place = place.inside(right=0)
    for x, y, name, colour in legend_items(items, place, _LINE):
        yield Box(place=Place(x=x, y=y - 2, width=14, height=4), fill=colour)
        yield Text(x=x + 18, y=y, text=name)


def _colour(style: Style) -> str:
    return style.colour(None)


def _table(content: Content, named: Sequence[tuple[Field, Style]], place: Place) -> Iterator[Shape]:
    calculations = content.option("legend", "calcs") or []
    y = place.y + _LINE / 2
    yield Text(x=place.x, y=y, text="Name", size=11, colour=LINK)
    for number, each in enumerate(reversed(calculations)):
        x, text = place.right - number * _COLUMN, REDUCER_NAMES.get(each, each)
        yield Text(x=x, y=y, text=text, size=11, colour=LINK, align=Align.RIGHT)
    for field, style in named:
        y += _LINE
        if y + _LINE / 2 > place.bottom + 1:
            return
        yield Line(points=((place.x, y - _LINE / 2), (place.right, y - _LINE / 2)), colour=GRID)
        yield Box(place=Place(x=place.x, y=y - 2, width=14, height=4), fill=_colour(style))
        name = fitted(style.title, 12, place.width - 24 - _COLUMN * len(calculations))
        yield Text(x=place.x + 20, y=y, text=name, colour=TEXT)
        for number, each in enumerate(reversed(calculations)):
            value = style.look(reduced(each, field.values)).text
            x = place.right - number * _COLUMN
            yield Text(x=x, y=y, text=value, colour=TEXT if value else FAINT, align=Align.RIGHT)
