"""Bar charts: a bar or a group of bars per row of a table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from rankwatch_dashboards.preview.colours import FAINT, GRID
from rankwatch_dashboards.preview.content import Content, in_the_middle
from rankwatch_dashboards.preview.frames import NUMBER, Field, Frame
from rankwatch_dashboards.preview.legend import legend, legend_place
from rankwatch_dashboards.preview.scale import Scale, scale_of
from rankwatch_dashboards.preview.shapes import Align, Box, Line, Place, Shape, Text, fitted, text_width

_AXIS = 22.0


def bar_chart(content: Content) -> Iterator[Shape]:
    """Upright or lying bars, side by side or stacked."""
    frame = next((each for each in content.frames if each.numbers and each.length), None)
    if frame is None:
        yield in_the_middle(content.place, content.no_data)
        return
    names, fields = _names(content, frame), [each for each in frame.fields if each.kind == NUMBER]
    fields = [each for each in fields if not (content.style(each).custom("hideFrom") or {}).get("viz")]
    legends = legend_place(content, len(fields))
    lying = content.option("orientation") == "horizontal"
    scale = _scale(content, fields)
    left = max(
        (text_width(each, 11) for each in (names if lying else [text for _, text in scale.ticks(4)])),
        default=0.0,
    )
    left = min(left + 16, content.place.width * 0.35)
    plot = content.place.inside(left + 4, 6, 14, _AXIS + (legends.height if legends else 0) + 4)
    yield from _axes(names, scale, plot, lying)
    yield from _bars(content, fields, len(names), scale, plot)
    if legends:
        yield from legend(content, fields, legends)


def _names(content: Content, frame: Frame) -> list[str]:
    wanted = content.option("xField")
    field = frame.of(str(wanted)) if wanted else None
    field = field or next((each for each in frame.fields if each.kind != NUMBER), frame.fields[0])
    return [content.style(field).look(value).text for value in field.values]


def _stacked(content: Content) -> bool:
    return (content.option("stacking") or "none") != "none"


def _scale(content: Content, fields: list[Field]) -> Scale:
    rows = list(zip(*([value or 0.0 for value in each.values] for each in fields), strict=True))
    numbers = [sum(row) if _stacked(content) else max(row) for row in rows]
    style = content.style(fields[0])
    limits = (style.config.get("min"), style.config.get("max"))
    return scale_of([0.0, *numbers], unit=str(style.config.get("unit") or ""), limits=limits)


def _axes(names: list[str], scale: Scale, plot: Place, lying: bool) -> Iterator[Shape]:
    for value, text in scale.ticks(4):
        share = scale.share(value)
        if lying:
            x = plot.x + plot.width * share
            yield Line(points=((x, plot.y), (x, plot.bottom)), colour=GRID)
            yield Text(x=x, y=plot.bottom + 11, text=text, size=11, colour=FAINT, align=Align.CENTRE)
        else:
            y = plot.bottom - plot.height * share
            yield Line(points=((plot.x, y), (plot.right, y)), colour=GRID)
            yield Text(x=plot.x - 8, y=y, text=text, size=11, colour=FAINT, align=Align.RIGHT)
    for number, name in enumerate(names):
        if lying:
            y = plot.y + plot.height * (number + 0.5) / len(names)
            yield Text(x=plot.x - 8, y=y, text=name, size=11, colour=FAINT, align=Align.RIGHT)
        else:
            width = plot.width / len(names)
            text, x = fitted(name, 11, width), plot.x + width * (number + 0.5)
            yield Text(x=x, y=plot.bottom + 11, text=text, size=11, colour=FAINT, align=Align.CENTRE)


def _bars(content: Content, fields: list[Field], rows: int, scale: Scale, plot: Place) -> Iterator[Shape]:
    lying, stacked = content.option("orientation") == "horizontal", _stacked(content)
    room = (plot.height if lying else plot.width) / max(rows, 1)
    thick = room * 0.8 / (1 if stacked else len(fields))
    for row in range(rows):
        values = [float(each.values[row] or 0.0) for each in fields]
        grounds = [0.0, *accumulate(values)] if stacked else [0.0] * len(fields)
        for number, (field, value) in enumerate(zip(fields, values, strict=True)):
            low, high = scale.share(grounds[number]), scale.share(grounds[number] + value)
            at = room * (row + 0.1) + (0 if stacked else number * thick)
            if lying:
                bar = Place(
                    x=plot.x + plot.width * low, y=plot.y + at, width=plot.width * (high - low), height=thick
                )
            else:
                y = plot.bottom - plot.height * high
                bar = Place(x=plot.x + at, y=y, width=thick, height=plot.height * (high - low))
            yield Box(place=bar, fill=content.style(field).look(value).colour)
