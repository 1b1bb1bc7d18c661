"""The loss of a run as a picture, with the alarms on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from markupsafe import Markup

from rankwatch.untrusted.text import printable
from rankwatch_diagnosis.goodput.report import moment
from rankwatch_diagnosis.review.model import LossCurve

_LEFT, _RIGHT, _TOP, _BOTTOM, _WIDTH, _HEIGHT = 70, 1000, 10, 220, 1016, 246
_LOGARITHMIC_FROM = 30.0
"""Highest over lowest loss from which an even scale would show the highest only."""


def loss_picture(curve: LossCurve) -> Markup | None:
    """An SVG; None where there are not two finite points."""
    finite = [each for each in curve.points if math.isfinite(each[0]) and math.isfinite(each[1])]
    if len(finite) < 2:
        return None
    xs, ys = [each[0] for each in finite], [each[1] for each in finite]
    logarithmic = min(ys) > 0.0 and max(ys) / min(ys) > _LOGARITHMIC_FROM
    y_of = _scale(min(ys), max(ys), _BOTTOM, _TOP, logarithmic=logarithmic)
    x_of = _scale(min(xs), max(xs), _LEFT, _RIGHT, logarithmic=False)
    line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in finite)
    label = f"Loss of rank {curve.rank} by {curve.axis}{', logarithmic' if logarithmic else ''}"
    parts = [
        *_axes(curve, xs, ys, label),
        Markup('<polyline class="loss" points="{}"/>').format(line),
        *_non_finite(curve, x_of),
        *_marks(curve, x_of),
    ]
    head = Markup('<svg role="img" aria-label="{}" viewBox="0 0 {} {}">').format(label, _WIDTH, _HEIGHT)
    return head + Markup("").join(parts) + Markup("</svg>")


def _scale(low: float, high: float, begin: int, end: int, *, logarithmic: bool) -> Callable[[float], float]:
    def place(value: float) -> float:
        return math.log(value) if logarithmic else value

    width = place(high) - place(low) or 1.0
    return lambda value: begin + (end - begin) * (place(value) - place(low)) / width


def _axes(curve: LossCurve, xs: Sequence[float], ys: Sequence[float], label: str) -> Iterator[Markup]:
    for y, value in ((_BOTTOM, min(ys)), (_TOP, max(ys))):
        yield Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(_LEFT, _RIGHT, y, y)
        yield Markup('<text class="soft" x="{}" y="{}" text-anchor="end">{:.4g}</text>').format(
            _LEFT - 8, y + 4, value
        )
    show: Callable[[float], str] = moment if curve.axis == "time" else "{:.0f}".format
    yield Markup('<text class="soft" x="{}" y="{}">{}</text>').format(_LEFT, _HEIGHT - 8, show(min(xs)))
    middle = Markup('<text class="soft" x="{}" y="{}" text-anchor="middle">{}</text>')
    yield middle.format((_LEFT + _RIGHT) / 2, _HEIGHT - 8, label)
    last = Markup('<text class="soft" x="{}" y="{}" text-anchor="end">{}</text>')
    yield last.format(_RIGHT, _HEIGHT - 8, show(max(xs)))


def _non_finite(curve: LossCurve, x_of: Callable[[float], float]) -> Iterator[Markup]:
    for at, value in curve.points:
        if not math.isfinite(value) and math.isfinite(at):
            shape = '<circle class="mark critical" cx="{:.1f}" cy="{}" r="4"><title>{} at {}</title></circle>'
            yield Markup(shape).format(min(max(x_of(at), _LEFT), _RIGHT), _TOP, value, at)


def _marks(curve: LossCurve, x_of: Callable[[float], float]) -> Iterator[Markup]:
    for each in curve.marks:
        x = min(max(x_of(each.step), _LEFT), _RIGHT)
        shape = (
            '<line class="alarm {0}" x1="{1:.1f}" x2="{1:.1f}" y1="{2}" y2="{3}"><title>{4}</title></line>'
        )
        yield Markup(shape).format(each.severity.value, x, _TOP, _BOTTOM, printable(each.text))
