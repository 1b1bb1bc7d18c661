"""Tables: columns by their overrides, cells coloured by thresholds and mappings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rankwatch_dashboards.preview.colours import BORDER, GRID, LINK, TEXT, mixed, readable_on
from rankwatch_dashboards.preview.content import Content, in_the_middle
from rankwatch_dashboards.preview.fields import Style
from rankwatch_dashboards.preview.frames import NUMBER, Field, Frame
from rankwatch_dashboards.preview.shapes import Align, Box, Line, Place, Shape, Text, fitted, text_width
from rankwatch_dashboards.preview.transformations import sorted_by

_HEIGHTS = {"sm": 36.0, "md": 42.0, "lg": 48.0}
_FONT = 13.0
_NARROWEST = 50.0


def table(content: Content) -> Iterator[Shape]:
    """The first frame only, as Grafana shows it: others wait in a list below the table."""
    frame = next((each for each in content.frames if each.fields), None)
    if frame is None or not frame.length:
        yield in_the_middle(content.place, content.no_data)
        return
    fields = [each for each in frame.fields if not _is_hidden(content.style(each))]
    place = content.place.inside(left=8, right=8)
    widths = column_widths([content.style(each) for each in fields], place.width)
    height = _HEIGHTS.get(str(content.option("cellHeight") or "sm"), 36.0)
    y = place.y
    if content.option("showHeader") is not False:
        yield from _header(content, fields, widths, Place(x=place.x, y=y, width=place.width, height=height))
        y += height
    for row in rows_in_order(content, frame):
        if y + height > place.bottom + 1:
            return
        x = place.x
        for field, width in zip(fields, widths, strict=True):
            cell = Place(x=x, y=y, width=width, height=height)
            yield from _cell(content.style(field), field, row, cell)
            x += width
        y += height
        yield Line(points=((place.x, y), (place.right, y)), colour=GRID)


def _is_hidden(style: Style) -> bool:
    return bool(style.custom("hidden") or (style.custom("hideFrom") or {}).get("viz"))


def rows_in_order(content: Content, frame: Frame) -> Sequence[int]:
    """The rows by the panel's own order, that of its `sortBy`: the first column decides, then the next."""
    numbered = Field(name="\0row", kind=NUMBER, values=tuple(range(frame.length)))
    ordered = Frame(query=frame.query, fields=(*frame.fields, numbered))
    for by in reversed(content.option("sortBy") or ()):
        names = {content.style(each).title: each.title for each in frame.fields}
        name = names.get(by["displayName"], by["displayName"])
        ordered = sorted_by(ordered, name, bool(by.get("desc")))
    return ordered.fields[-1].values


def column_widths(styles: Sequence[Style], width: float) -> list[float]:
    """Columns of a given width have it; the others share what is left, none below its smallest width."""
    given = [each.custom("width") for each in styles]
    smallest = [float(each.custom("minWidth") or _NARROWEST) for each in styles]
    left = width - sum(float(each) for each in given if each)
    free = sum(1 for each in given if not each)
    return [
        float(each) if each else max(left / max(free, 1), least)
        for each, least in zip(given, smallest, strict=True)
    ]


def _header(
    content: Content, fields: Sequence[Field], widths: Sequence[float], place: Place
) -> Iterator[Shape]:
    x = place.x
    for field, width in zip(fields, widths, strict=True):
        style, cell = content.style(field), Place(x=x, y=place.y, width=width, height=place.height)
        yield _text(style.title, cell, LINK, _alignment(style, field))
        x += width
    yield Line(points=((place.x, place.bottom), (place.right, place.bottom)), colour=BORDER)


def _alignment(style: Style, field: Field) -> Align:
    wanted = style.custom("align", "auto")
    if wanted in ("left", "center", "right"):
        return Align(wanted)
    return Align.RIGHT if field.kind == NUMBER else Align.LEFT


def _cell(style: Style, field: Field, row: int, cell: Place) -> Iterator[Shape]:
    value = field.values[row]
    look, alignment = style.look(value), _alignment(style, field)
    options: Mapping[str, Any] = style.custom("cellOptions", {})
    colour = TEXT
    match options.get("type", "auto"):
        case "color-text":
            colour = look.colour
        case "color-background" if value is not None:
            fill = look.colour if options.get("mode") == "basic" else mixed(look.colour, "#000000", 0.12)
            yield Box(place=cell.inside(0, 0, 1, 1), fill=fill)
            colour = readable_on(fill)
        case "gauge" if isinstance(value, int | float):
            yield from _gauge(style, value, cell)
            colour = look.colour
    yield (text := _text(look.text, cell, colour, alignment))
    if style.config.get("links") and text.text:
        yield _underline(text)


def _gauge(style: Style, value: float, cell: Place) -> Iterator[Shape]:
    bar = cell.inside(6, 7, 80, 7)
    yield Box(place=bar, fill=GRID)
    full = Place(x=bar.x, y=bar.y, width=bar.width * style.share(value), height=bar.height)
    yield Box(place=full, fill=style.colour(value))


def _text(text: str, cell: Place, colour: str, alignment: Align) -> Text:
    inner = cell.inside(6, 0, 6, 0)
    places = {Align.LEFT: inner.x, Align.CENTRE: inner.x + inner.width / 2, Align.RIGHT: inner.right}
    return Text(
        x=places[alignment],
        y=cell.y + cell.height / 2,
        text=fitted(text, _FONT, inner.width),
        size=_FONT,
        colour=colour,
        align=alignment,
    )


def _underline(text: Text) -> Line:
    width = text_width(text.text, text.size)
    left = {Align.LEFT: 0.0, Align.CENTRE: width / 2, Align.RIGHT: width}[text.align]
    start, y = text.x - left, text.y + 8
    return Line(points=((start, y), (start + width, y)), colour=text.colour)
