"""The axis of time that several forms share, with annotations on it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from rankwatch_dashboards.preview.colours import FAINT, GRID
from rankwatch_dashboards.preview.content import Content
from rankwatch_dashboards.preview.shapes import Align, Area, Line, Place, Shape, Text

HEIGHT = 22.0
"""Pixels that the labels take below the plot."""
_STEPS = (1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 604800)
_PIXELS_PER_LABEL = 80.0


def across(content: Content, plot: Place, moment: float) -> float:
    """Where a moment lies on the plot."""
    span = max(content.end - content.start, 1.0)
    return plot.x + plot.width * (moment - content.start) / span


def time_axis(content: Content, plot: Place, grid: bool = True) -> Iterator[Shape]:
    """Lines and labels at round moments."""
    span = max(content.end - content.start, 1.0)
    most = max(plot.width / _PIXELS_PER_LABEL, 1.0)
    step = next((each for each in _STEPS if span / each <= most), _STEPS[-1])
    moment = (content.start // step + 1) * step
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%m/%d"
    while moment <= content.end:
        x = across(content, plot, moment)
        if grid:
            yield Line(points=((x, plot.y), (x, plot.bottom)), colour=GRID)
        text = datetime.fromtimestamp(moment, UTC).strftime(form)
        if x + 24 < content.place.right:
            yield Text(x=x, y=plot.bottom + HEIGHT / 2, text=text, size=11, colour=FAINT, align=Align.CENTRE)
        moment += step


def marked_events(content: Content, plot: Place) -> Iterator[Shape]:
    """A dashed line where each event starts, and a band below the plot as long as it lasts."""
    for each in content.events:
        left = across(content, plot, max(each.start, content.start))
        right = across(content, plot, min(each.end, content.end))
        if right < plot.x or left > plot.right:
            continue
        yield Line(points=((left, plot.y), (left, plot.bottom)), colour=each.colour, dashed=True, clip=plot)
        low = plot.bottom + 3
        band = ((left, plot.bottom), (max(right, left + 3), plot.bottom), (max(right, left + 3), low))
        yield Area(points=(*band, (left, low)), fill=each.colour)
