"""Bar gauges: a bar per value, on a common scale."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rankwatch_dashboards.preview.colours import GRID, TEXT, mixed
from rankwatch_dashboards.preview.content import Content, Value, in_the_middle, values
from rankwatch_dashboards.preview.shapes import Align, Box, Place, Shape, Text, fitted, text_width

_LCD_CELL = 14.0


def bar_gauge(content: Content) -> Iterator[Shape]:
    """Horizontal bars have their names to the left or above; vertical ones below."""
    chosen = values(content)
    if not chosen:
        yield in_the_middle(content.place, content.no_data)
        return
    orientation = content.option("orientation") or "auto"
    place = content.place.inside(8, 2, 8, 6)
    if orientation == "vertical" or (orientation == "auto" and place.width > place.height * 2.5):
        yield from _upright(content, chosen, place)
    else:
        yield from _lying(content, chosen, place)


def _lying(content: Content, chosen: list[Value], place: Place) -> Iterator[Shape]:
    height = place.height / len(chosen)
    looks = [each.style.look(each.value) for each in chosen]
    above = content.option("namePlacement") == "top" or height >= 60
    names = 0.0 if above else min(max(text_width(each.name, 13) for each in chosen) + 12, place.width * 0.4)
    texts = max(text_width(each.text, 15) for each in looks) + 12
    for number, (each, look) in enumerate(zip(chosen, looks, strict=True)):
        row = Place(x=place.x, y=place.y + number * height, width=place.width, height=height)
        bar = row.inside(names, 18 if above else 2, texts, 2)
        name = fitted(each.name, 13, place.width if above else names - 8)
        yield Text(x=row.x, y=row.y + 9 if above else row.y + height / 2, text=name, size=13)
        yield from _bar(content, each, bar, look.colour)
        middle = bar.y + bar.height / 2
        yield Text(x=row.right, y=middle, text=look.text, size=15, colour=look.colour, align=Align.RIGHT)


def _bar(content: Content, each: Value, bar: Place, colour: str) -> Iterator[Shape]:
    value = each.value if isinstance(each.value, int | float) else math.nan
    share = each.style.share(value)
    if content.option("displayMode") == "lcd":
        count = max(int(bar.width // _LCD_CELL), 1)
        for number in range(count):
            cell = Place(x=bar.x + number * _LCD_CELL, y=bar.y, width=_LCD_CELL - 2, height=bar.height)
            lit = number < share * count
            yield Box(place=cell, fill=colour if lit else mixed(GRID, colour, 0.1))
        return
    if content.option("showUnfilled") is not False:
        yield Box(place=bar, fill=GRID)
    if share > 0:
        filled = Place(x=bar.x, y=bar.y, width=bar.width * share, height=bar.height)
        yield Box(place=filled, fill=mixed("#181b1f", colour, 0.75), edge=colour)


def _upright(content: Content, chosen: list[Value], place: Place) -> Iterator[Shape]:
    width = place.width / len(chosen)
    for number, each in enumerate(chosen):
        look = each.style.look(each.value)
        column = Place(x=place.x + number * width, y=place.y, width=width, height=place.height)
        bar = column.inside(4, 22, 4, 20)
        value = each.value if isinstance(each.value, int | float) else math.nan
        high = bar.height * each.style.share(value)
        if content.option("showUnfilled") is not False:
            yield Box(place=bar, fill=GRID)
        if high > 0:
            filled = Place(x=bar.x, y=bar.bottom - high, width=bar.width, height=high)
            yield Box(place=filled, fill=mixed("#181b1f", look.colour, 0.75), edge=look.colour)
        x = column.x + width / 2
        yield Text(x=x, y=column.y + 11, text=look.text, size=15, colour=look.colour, align=Align.CENTRE)
        name = fitted(each.name, 12, width)
        yield Text(x=x, y=column.bottom - 9, text=name, colour=TEXT, align=Align.CENTRE)
