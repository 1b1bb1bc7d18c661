"""What a picture is made of, in pixels from its upper left corner, before anything is painted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Align(StrEnum):
    """Which part of a text stands at its place."""

    LEFT = "left"
    CENTRE = "center"
    RIGHT = "right"


@dataclass(frozen=True, kw_only=True)
class Place:
    """A rectangle on the picture."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Where it ends to the right."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Where it ends below."""
        return self.y + self.height

    def inside(self, left: float = 0, top: float = 0, right: float = 0, bottom: float = 0) -> Place:
        """What is left of it without these margins, never less than one pixel."""
        width = max(self.width - left - right, 1.0)
        height = max(self.height - top - bottom, 1.0)
        return Place(x=self.x + left, y=self.y + top, width=width, height=height)


@dataclass(frozen=True, kw_only=True)
class Text:
    """One line of text; `y` is its middle."""

    x: float
    y: float
    text: str
    size: float = 12
    """Height of the font in pixels."""
    colour: str = "#ccccdc"
    align: Align = Align.LEFT
    bold: bool = False


@dataclass(frozen=True, kw_only=True)
class Box:
    """A filled rectangle."""

    place: Place
    fill: str
    edge: str = ""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Straight lines from point to point, cut off outside `clip`."""

    points: tuple[tuple[float, float], ...]
    colour: str
    width: float = 1
    dashed: bool = False
    clip: Place | None = None


@dataclass(frozen=True, kw_only=True)
class Area:
    """A filled polygon, cut off outside `clip`."""

    points: tuple[tuple[float, float], ...]
    fill: str
    opacity: float = 1
    clip: Place | None = None


Shape = Text | Box | Line | Area
"""One part of a picture; later ones cover earlier ones."""

_NARROW, _SLIM, _WIDE = "iljI.,:;'|!", "ft()[]r-/ ", "mwMW@%"


def text_width(text: str, size: float) -> float:
    """About how many pixels a text takes, for DejaVu Sans."""
    return size * sum(_em(each) for each in text)


def _em(letter: str) -> float:
    if letter in _NARROW:
        return 0.31
    if letter in _SLIM:
        return 0.39
    if letter in _WIDE:
        return 0.92
    return 0.68 if letter.isupper() else 0.62


def fitted(text: str, size: float, width: float) -> str:
    """The text, its end replaced by an ellipsis where it is wider than `width` pixels."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(f"{text}…", size) > width:
        text = text[:-1]
    return f"{text}…" if text else ""


def largest_size(text: str, width: float, height: float, most: float) -> float:
    """The font size with which a bold text fills a place, at most `most` pixels."""
    return max(min(most, height, width / max(text_width(text, 1.15), 0.1)), 8.0)
