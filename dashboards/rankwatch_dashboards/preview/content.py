"""What a form of panels is given to draw, and what the forms share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankwatch_dashboards.preview.colours import FAINT
from rankwatch_dashboards.preview.fields import Style
from rankwatch_dashboards.preview.frames import Field, Frame
from rankwatch_dashboards.preview.reducers import reduced
from rankwatch_dashboards.preview.shapes import Align, Place, Shape, Text, fitted, text_width


@dataclass(frozen=True, kw_only=True)
class Event:
    """An annotation: a moment or a span that panels over time mark."""

    start: float
    end: float
    colour: str


@dataclass(frozen=True, kw_only=True)
class Content:
    """A panel with its data."""

    panel: Mapping[str, Any]
    frames: Sequence[Frame]
    styles: Mapping[int, Style]
    """By `id` of the field."""
    place: Place
    """The panel without its title."""
    start: float
    end: float
    """The time range, in seconds since 1970."""
    step_seconds: float
    events: Sequence[Event] = ()

    def style(self, field: Field) -> Style:
        """How values of a field look."""
        return self.styles[id(field)]

    def option(self, *path: str) -> Any:
        """An option of the panel by its path; None where it is not set."""
        found: Any = self.panel.get("options") or {}
        for each in path:
            found = found.get(each) if isinstance(found, Mapping) else None
        return found

    @property
    def series(self) -> list[tuple[Frame, Field]]:
        """All fields of numbers that are shown, with their frames."""
        return [
            (frame, field)
            for frame in self.frames
            for field in frame.numbers
            if not (self.style(field).custom("hideFrom") or {}).get("viz")
        ]

    @property
    def no_data(self) -> str:
        """What the panel says where there is nothing."""
        defaults = (self.panel.get("fieldConfig") or {}).get("defaults") or {}
        return str(defaults.get("noValue") or "No data")


@dataclass(frozen=True, kw_only=True)
class Value:
    """One reduced value of a stat or a bar gauge."""

    name: str
    value: Any
    style: Style
    field: Field
    frame: Frame


def values(content: Content) -> list[Value]:
    """What `reduceOptions` of stats and bar gauges choose: a value per series, or each row of a table."""
    options = content.option("reduceOptions") or {}
    calculation = (options.get("calcs") or ["lastNotNull"])[0]
    found = []
    for frame in content.frames:
        for field in _chosen(content, frame, str(options.get("fields") or "")):
            style = content.style(field)
            if not options.get("values"):
                value = reduced(calculation, field.values)
                found.append(Value(name=style.title, value=value, style=style, field=field, frame=frame))
                continue
            names = next((each for each in frame.fields if each.kind == "string"), None)
            for row in range(min(frame.length, int(options.get("limit") or frame.length))):
                name = str(names.values[row]) if names else style.title
                value = field.values[row]
                found.append(Value(name=name, value=value, style=style, field=field, frame=frame))
    return found


def _chosen(content: Content, frame: Frame, wanted: str) -> list[Field]:
    if not wanted:
        return list(frame.numbers)
    if wanted == "/.*/":
        return [each for each in frame.fields if each.kind != "time"]
    exact = wanted.strip("/").strip("^$").replace("\\", "")
    return [each for each in frame.fields if exact in (content.style(each).title, each.title, each.name)]


def in_the_middle(place: Place, text: str, colour: str = FAINT, size: float = 14) -> Text:
    """A text in the middle of a place, shortened to fit."""
    x, y = place.x + place.width / 2, place.y + place.height / 2
    text = fitted(text, size, place.width - 8)
    return Text(x=x, y=y, text=text, size=size, colour=colour, align=Align.CENTRE)


def legend_items(
    items: Sequence[tuple[str, str]], place: Place, height: float = 20
) -> Iterator[tuple[float, float, str, str]]:
    """Left end and middle, name and colour of the items of a legend, in lines that fit into a place."""
    x, y = place.x, place.y + height / 2
    for name, colour in items:
        name = fitted(name, 12, place.width - 24)
        width = 30 + text_width(name, 12)
        if x + width > place.right and x > place.x:
            x, y = place.x, y + height
        if y + height / 2 > place.bottom + 1:
            return
        yield x, y, name, colour
        x += width


def titled(place: Place, title: str, colour: str) -> Iterator[Shape]:
    """The title of a panel, in its upper left corner."""
    if title:
        text = fitted(title, 14, place.width - 16)
        yield Text(x=place.x + 8, y=place.y + 16, text=text, size=14, colour=colour)
