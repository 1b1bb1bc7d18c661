"""Line charts as SVG, without a library: a few shapes and where they go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

COLOURS = ("#3b6fb6", "#5a9e6f", "#c9822b", "#8a63b0", "#3f8f93", "#8c6d31", "#6b6b6b", "#b0639a")
Point = tuple[float, float]


def document(width: int, height: int, parts: Iterable[str]) -> str:
    """An SVG file of these parts on white."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">'
    )
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="white"/>', *parts, "</svg>", ""])


def tick(left: float, right: float, y: float, text: str) -> Iterable[str]:
    """A horizontal line of the grid, with its value at the left."""
    yield f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>'
    yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#666">{text}</text>'


def polyline(points: Iterable[Point], colour: str) -> str:
    """A line through points of the picture."""
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="2"/>'


class Frame(NamedTuple):
    """A panel of shares (0 to 1) over places along the bottom."""

    left: int
    top: int
    width: int
    height: int


def shares(
    frame: Frame,
    title: str,
    places: Sequence[str],
    lines: Mapping[str, Sequence[float]],
    below: str,
) -> Iterable[str]:
    """One line for each name, with a point at each place and a key at the right."""
    left, top, width, height = frame
    right, bottom = left + width, top + height
    x: Callable[[int], float] = lambda place: left + width * place / max(1, len(places) - 1)  # noqa: E731
    yield f'<text x="{left}" y="{top - 16}" font-weight="bold">{title}</text>'
    for percent in range(0, 101, 25):
        yield from tick(left, right, bottom - height * percent / 100, f"{percent} %")
    for number, place in enumerate(places):
        yield f'<text x="{x(number):.1f}" y="{bottom + 18}" text-anchor="middle" fill="#666">{place}</text>'
    yield f'<text x="{left + width / 2}" y="{bottom + 38}" text-anchor="middle" fill="#666">{below}</text>'
    for number, (name, values) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        yield polyline(((x(at), bottom - height * value) for at, value in enumerate(values)), colour)
        yield f'<text x="{right + 14}" y="{top + 14 + 20 * number}" fill="{colour}">{name}</text>'
