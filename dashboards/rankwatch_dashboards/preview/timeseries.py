"""Time series: lines, bars or points over time, stacked or not, with thresholds and a legend."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rankwatch_dashboards.preview.colours import BORDER, FAINT, GRID, hexadecimal
from rankwatch_dashboards.preview.content import Content, in_the_middle
from rankwatch_dashboards.preview.fields import Style
from rankwatch_dashboards.preview.frames import Field
from rankwatch_dashboards.preview.legend import legend, legend_place
from rankwatch_dashboards.preview.scale import Scale, scale_of
from rankwatch_dashboards.preview.shapes import Align, Area, Box, Line, Place, Shape, Text, text_width
from rankwatch_dashboards.preview.time_axis import HEIGHT, across, marked_events, time_axis

_PIXELS_PER_TICK = 34.0


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A series on its axis: its points, and what lies below them where it is stacked."""

    field: Field
    style: Style
    points: tuple[tuple[float, float, float], ...]
    """Moment, value, and the value that it stands on."""
    broken_after: float
    """Seconds without a sample after which the line is interrupted."""


def timeseries(content: Content) -> Iterator[Shape]:
    """The plot with its axes, and the legend."""
    made = curves(content)
    if not made:
        yield in_the_middle(content.place, content.no_data)
        return
    legends = legend_place(content, len(made))
    below = legends.height if legends and legends.x == content.place.x + 8 else 0.0
    beside = legends.width + 8 if legends and not below else 0.0
    scales = _scales(made)
    labels = {unit: list(each.ticks(4)) for unit, each in scales.items()}
    margins = [
        max((text_width(text, 11) for _, text in ticks), default=0.0) + 14 for ticks in labels.values()
    ]
    right = margins[1] if len(margins) > 1 else 10.0
    plot = content.place.inside(margins[0] + 4, 6, right + beside, HEIGHT + below + 6)
    for number, scale in enumerate(list(scales.values())[:2]):
        yield from _value_axis(scale, plot, to_the_right=number == 1)
    yield from time_axis(content, plot)
    yield from _thresholds(made[0].style, next(iter(scales.values())), plot)
    for each in made:
        yield from _curve(content, each, scales[_axis(each.style)], plot)
    yield from marked_events(content, plot)
    if legends:
        yield from legend(content, [each.field for each in made], legends)


def curves(content: Content) -> list[Curve]:
    """The series to draw; those of a stack stand on those before them."""
    made: list[Curve] = []
    stacks: dict[str, dict[float, float]] = {}
    for frame, field in content.series:
        style = content.style(field)
        stacking = style.custom("stacking", {})
        stacked = stacking.get("mode", "none") != "none"
        ground = stacks.setdefault(str(stacking.get("group") or "A"), {}) if stacked else {}
        points = []
        for moment, value in zip(frame.moments, field.values, strict=True):
            if value is None or not math.isfinite(value):
                continue
            low = ground.get(moment, 0.0)
            points.append((moment, value + low if stacked else value, low))
            if stacked:
                ground[moment] = low + value
        if points:
            gap = math.inf if style.custom("spanNulls") is True else content.step_seconds * 1.5
            made.append(Curve(field=field, style=style, points=tuple(points), broken_after=gap))
    return made


def _axis(style: Style) -> str:
    return f"{style.config.get('unit') or ''}/{style.custom('axisPlacement', 'auto')}"


def _scales(made: Sequence[Curve]) -> dict[str, Scale]:
    """An axis for each unit; the first one is to the left."""
    groups: dict[str, list[Curve]] = {}
    for each in made:
        groups.setdefault(_axis(each.style), []).append(each)
    return {name: _scale(group) for name, group in groups.items()}


def _scale(group: Sequence[Curve]) -> Scale:
    style = group[0].style
    numbers = [number for each in group for _, value, low in each.points for number in (value, low or value)]
    return scale_of(
        numbers,
        unit=str(style.config.get("unit") or ""),
        decimals=style.config.get("decimals"),
        limits=(style.config.get("min"), style.config.get("max")),
        soft=(style.custom("axisSoftMin"), style.custom("axisSoftMax")),
        logarithmic=style.custom("scaleDistribution", {}).get("type") == "log",
    )


def _value_axis(scale: Scale, plot: Place, to_the_right: bool) -> Iterator[Shape]:
    for value, text in scale.ticks(max(int(plot.height / _PIXELS_PER_TICK), 2)):
        y = scale.y(value, plot)
        if not plot.y - 1 <= y <= plot.bottom + 1:
            continue
        if to_the_right:
            yield Text(x=plot.right + 8, y=y, text=text, size=11, colour=FAINT)
        else:
            yield Line(points=((plot.x, y), (plot.right, y)), colour=GRID)
            yield Text(x=plot.x - 8, y=y, text=text, size=11, colour=FAINT, align=Align.RIGHT)
    yield Line(points=((plot.x, plot.bottom), (plot.right, plot.bottom)), colour=BORDER)


def _thresholds(style: Style, scale: Scale, plot: Place) -> Iterator[Shape]:
    """Lines or areas, where the panel asks for them."""
    mode = style.custom("thresholdsStyle", {}).get("mode", "off")
    steps = style.thresholds()
    limits = [limit for limit, _ in steps[1:]]
    for (limit, colour), following in zip(steps, [*limits, None], strict=True):
        low = plot.bottom if limit is None else scale.y(limit, plot)
        high = plot.y if following is None else scale.y(following, plot)
        if "area" in mode:
            corners = ((plot.x, low), (plot.right, low), (plot.right, high), (plot.x, high))
            yield Area(points=corners, fill=hexadecimal(colour), opacity=0.1, clip=plot)
        if limit is not None and mode != "area" and mode != "off":
            ends = ((plot.x, low), (plot.right, low))
            dashed = "dashed" in mode
            yield Line(points=ends, colour=hexadecimal(colour), width=1.5, dashed=dashed, clip=plot)


def _curve(content: Content, curve: Curve, scale: Scale, plot: Place) -> Iterator[Shape]:
    colour, style = curve.style.colour(curve.points[-1][1]), curve.style
    placed = [
        (across(content, plot, moment), scale.y(value, plot), scale.y(max(low, scale.low), plot), moment)
        for moment, value, low in curve.points
    ]
    form = style.custom("drawStyle", "line")
    if form == "bars":
        width = max(across(content, plot, content.start + content.step_seconds) - plot.x - 2, 1.0)
        for x, y, ground, _ in placed:
            bar = Place(x=x - width / 2, y=min(y, ground), width=width, height=max(abs(ground - y), 1.0))
            yield Box(place=bar, fill=colour)
        return
    for part in _parts(placed, curve.broken_after):
        yield from _line(part, style, colour, plot)
    if form == "points" or style.custom("showPoints") == "always" or len(placed) == 1:
        for x, y, _, _ in placed:
            yield Box(place=Place(x=x - 2.5, y=y - 2.5, width=5, height=5), fill=colour)


_Placed = tuple[float, float, float, float]


def _parts(placed: Sequence[_Placed], gap: float) -> Iterator[list[_Placed]]:
    part = list(placed[:1])
    for one, other in pairwise(placed):
        if other[3] - one[3] > gap:
            yield part
            part = []
        part.append(other)
    yield part


def _line(part: Sequence[_Placed], style: Style, colour: str, plot: Place) -> Iterator[Shape]:
    opacity = float(style.custom("fillOpacity", 0)) / 100
    upper = [(x, y) for x, y, _, _ in part]
    if style.custom("lineInterpolation") in ("stepAfter", "stepBefore"):
        upper = [upper[0], *(each for one, other in pairwise(upper) for each in ((other[0], one[1]), other))]
    if opacity and len(part) > 1:
        lower = [(x, ground) for x, _, ground, _ in reversed(part)]
        yield Area(points=(*upper, *lower), fill=colour, opacity=opacity, clip=plot)
    if form_drawn(style) and len(upper) > 1:
        line_style: Mapping[str, object] = style.custom("lineStyle", {})
        yield Line(
            points=tuple(upper),
            colour=colour,
            width=float(style.custom("lineWidth", 1)) + 0.4,
            dashed=line_style.get("fill") == "dash",
            clip=plot,
        )


def form_drawn(style: Style) -> bool:
    """True where points are joined by lines."""
    return bool(style.custom("drawStyle", "line") == "line" and float(style.custom("lineWidth", 1)) > 0)
