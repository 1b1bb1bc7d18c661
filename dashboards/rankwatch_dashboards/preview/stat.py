"""Stats: one large value per series."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rankwatch_dashboards.preview.colours import TEXT, mixed, readable_on
from rankwatch_dashboards.preview.content import Content, Value, in_the_middle, values
from rankwatch_dashboards.preview.shapes import (
    Align,
    Area,
    Box,
    Line,
    Place,
    Shape,
    Text,
    fitted,
    largest_size,
)

_LARGEST_VALUE, _LARGEST_NAME = 54.0, 26.0
_SPARKLINE_SHARE = 0.4
"""Of the height, as in Grafana."""


def stat(content: Content) -> Iterator[Shape]:
    """Each value in a cell of its own, in the colour of its threshold or mapping."""
    chosen = values(content)
    if not chosen:
        yield from _nothing(content)
        return
    places = _cells(content.place, len(chosen), str(content.option("orientation") or "auto"))
    named = _names_shown(content, chosen)
    for each, place in zip(chosen, places, strict=False):
        yield from _cell(content, each, place, named)


def _nothing(content: Content) -> Iterator[Shape]:
    """Grafana shows the text for no value large, in the base colour."""
    size = largest_size(content.no_data, content.place.width - 24, content.place.height * 0.5, _LARGEST_VALUE)
    yield in_the_middle(content.place, content.no_data, TEXT, size)


def _names_shown(content: Content, chosen: Sequence[Value]) -> bool:
    mode = content.option("textMode") or "auto"
    return mode in ("value_and_name", "name") or (mode == "auto" and len(chosen) > 1)


def _cells(place: Place, count: int, orientation: str) -> Iterator[Place]:
    """Grafana's repeater: side by side, below each other, or the grid with the squarest cells."""
    columns = {"vertical": count, "horizontal": 1}.get(orientation) or _columns(place, count)
    rows = math.ceil(count / columns)
    width, height = place.width / columns, place.height / rows
    for number in range(count):
        x, y = place.x + number % columns * width, place.y + number // columns * height
        yield Place(x=x, y=y, width=width, height=height).inside(2, 2, 2, 2)


def _columns(place: Place, count: int) -> int:
    def smallest_side(columns: int) -> float:
        return min(place.width / columns / 2.2, place.height / math.ceil(count / columns))

    return max(range(1, count + 1), key=smallest_side)


def _cell(content: Content, each: Value, place: Place, named: bool) -> Iterator[Shape]:
    look, mode = each.style.look(each.value), content.option("colorMode") or "value"
    colour = look.colour
    if mode.startswith("background"):
        yield Box(place=place, fill=look.colour)
        colour = readable_on(look.colour)
    elif mode == "none":
        colour = TEXT
    text = look.text or content.no_data
    alone = content.option("textMode") == "name"
    drawn = content.option("graphMode") == "area" and len(each.field.values) > 1
    upper = place.inside(bottom=place.height * _SPARKLINE_SHARE) if drawn and not alone else place
    if drawn and not alone:
        yield from _sparkline(content, each, place, look.colour if colour == look.colour else colour)
    if alone or content.option("textMode") == "none":
        yield from _line(each.name, place, colour, 0.5, 0.6) if alone else ()
    elif named:
        yield from _line(each.name, upper, TEXT if colour == look.colour else colour, 0.26, 0.28)
        yield from _line(text, upper, colour, 0.66, 0.52)
    else:
        yield from _line(text, upper, colour, 0.5, 0.62)


def _line(text: str, place: Place, colour: str, middle: float, share: float) -> Iterator[Shape]:
    """A text at a share of the height, as large as fits."""
    most = _LARGEST_VALUE if share > 0.3 else _LARGEST_NAME
    size = largest_size(text, place.width - 20, place.height * share, most)
    yield Text(
        x=place.x + place.width / 2,
        y=place.y + place.height * middle,
        text=fitted(text, size, place.width - 12),
        size=size,
        colour=colour,
        align=Align.CENTRE,
        bold=share > 0.3,
    )


def _sparkline(content: Content, each: Value, place: Place, colour: str) -> Iterator[Shape]:
    held = [
        (moment, value)
        for moment, value in zip(each.frame.moments, each.field.values, strict=True)
        if value is not None and math.isfinite(value)
    ]
    if len(held) < 2:
        return
    low, high = min(value for _, value in held), max(value for _, value in held)
    height, span = place.height * _SPARKLINE_SHARE, max(content.end - content.start, 1.0)
    points = tuple(
        (
            place.x + place.width * (moment - content.start) / span,
            place.bottom - height * (0.1 + 0.8 * ((value - low) / (high - low) if high > low else 0.0)),
        )
        for moment, value in held
    )
    ends = ((points[-1][0], place.bottom), (points[0][0], place.bottom))
    yield Area(points=(*points, *ends), fill=colour, opacity=0.25, clip=place)
    yield Line(points=points, colour=mixed(colour, "#000000", 0.1), width=1.5, clip=place)
