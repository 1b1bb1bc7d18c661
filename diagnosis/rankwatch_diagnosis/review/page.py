"""The review of a run as a page. Its pictures are SVG in the file; it has no script."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from rankwatch.untrusted.text import printable
from rankwatch_diagnosis.pages.html_page import page
from rankwatch_diagnosis.review.model import (
    Event,
    EventKind,
    LossCurve,
    RankPhases,
    RunReview,
    checkpoint_row,
    facts,
    impact,
    when,
    where,
)
from rankwatch_diagnosis.words import moment

_MOST_RANKS = 128
COLOURS = 8
"""Classes of the style for phases."""


class Piece(NamedTuple):
    """A phase in the bar of a rank, in percent."""

    name: str
    colour: int
    x: float
    width: float


def review_page(review: RunReview) -> str:
    """Return the page about a run. Everything on it that comes from a run is escaped."""
    names = list(dict.fromkeys(name for each in review.phases for name in each.seconds))
    began = min((each.at for each in review.events), default=review.started or 0.0)
    ended = max((each.until or each.at for each in review.events), default=began)
    return page(
        "review",
        source=review.source,
        review=review,
        facts=facts(review),
        time_line=time_line(review.events, began, max(ended, review.ended or 0.0)),
        events=[
            (when(each), each.text, where(each), each.severity.value, each.source) for each in review.events
        ],
        impact=list(impact(review.goodput)),
        names=[(name, at % COLOURS) for at, name in enumerate(names)],
        phases=[(each, list(_pieces(each, names))) for each in review.phases[:_MOST_RANKS]],
        ranks_left_out=max(0, len(review.phases) - _MOST_RANKS),
        loss=None if review.loss is None else loss_picture(review.loss),
        checkpoints=[checkpoint_row(each) for each in review.checkpoints],
    )


def _pieces(of: RankPhases, names: Sequence[str]) -> Iterator[Piece]:
    x, total = 0.0, of.total or 1.0
    for at, name in enumerate(names):
        width = 100.0 * max(0.0, of.seconds.get(name, 0.0)) / total
        if width > 0.0:
            yield Piece(name, at % COLOURS, x, width)
        x += width


_LANE, _LEFT, _RIGHT, _WIDTH, _FOOT = 26, 96, 1000, 1016, 24
_LEAST_WIDTH = 3.0
_TICKS = 4


def time_line(events: Sequence[Event], started: float, ended: float) -> Markup:
    """Return an SVG of the events between two moments in Unix time; each says in its title what it is."""
    lanes = [kind for kind in EventKind if any(each.kind is kind for each in events)]
    height = len(lanes) * _LANE + _FOOT
    length = max(ended - started, 1.0)
    parts = [*_lanes(lanes), *_ticks(started, length, len(lanes) * _LANE)]
    parts += [_mark(each, lanes.index(each.kind), started, length) for each in events]
    head = Markup('<svg role="img" aria-label="Time line of the run" viewBox="0 0 {} {}">')
    return head.format(_WIDTH, height) + Markup("").join(parts) + Markup("</svg>")


def _lanes(lanes: Sequence[EventKind]) -> Iterator[Markup]:
    for at, kind in enumerate(lanes):
        y = at * _LANE + _LANE
        yield Markup('<line class="grid" x1="0" x2="{}" y1="{}" y2="{}"/>').format(_RIGHT, y, y)
        yield Markup('<text class="soft" x="0" y="{}">{}</text>').format(y - 9, kind.value)


def _ticks(started: float, length: float, bottom: int) -> Iterator[Markup]:
    for at in range(_TICKS + 1):
        x = _LEFT + (_RIGHT - _LEFT) * at / _TICKS
        anchor = "start" if at == 0 else "end" if at == _TICKS else "middle"
        text = moment(started + length * at / _TICKS).partition(" ")[2] if at else moment(started)
        yield Markup('<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="0" y2="{1}"/>').format(x, bottom)
        yield Markup('<text class="soft" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
            x, bottom + 17, anchor, text
        )


def _mark(event: Event, lane: int, started: float, length: float) -> Markup:
    def x_of(wall: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * min(1.0, max(0.0, (wall - started) / length))

    x, y = x_of(event.at), lane * _LANE + _LANE / 2
    title = Markup("<title>{}</title>").format(f"{when(event)}: {printable(event.text)}")
    kind = "attempt" if event.kind is EventKind.ATTEMPT else event.severity.value
    end = x_of(event.until) if event.until is not None else x
    if event.kind is EventKind.ATTEMPT and event.until is None and " ends: " not in event.text:
        end = float(_RIGHT)  # it runs
    if end - x > _LEAST_WIDTH:
        shape = '<rect class="mark {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="10" rx="2">{}</rect>'
        return Markup(shape).format(kind, x, y - 5, end - x, title)
    return Markup('<circle class="mark {}" cx="{:.1f}" cy="{:.1f}" r="4.5">{}</circle>').format(
        event.severity.value, x, y, title
    )


_LOSS_LEFT, _LOSS_RIGHT, _TOP, _BOTTOM, _LOSS_WIDTH, _HEIGHT = 70, 1000, 10, 220, 1016, 246
_LOGARITHMIC_FROM = 30.0
"""Highest over lowest loss from which an even scale would show the highest only."""


def loss_picture(curve: LossCurve) -> Markup | None:
    """Return an SVG; None where there are not two finite points."""
    finite = [each for each in curve.points if math.isfinite(each[0]) and math.isfinite(each[1])]
    if len(finite) < 2:
        return None
    xs, ys = [each[0] for each in finite], [each[1] for each in finite]
    logarithmic = min(ys) > 0.0 and max(ys) / min(ys) > _LOGARITHMIC_FROM
    y_of = _scale(min(ys), max(ys), _BOTTOM, _TOP, logarithmic=logarithmic)
    x_of = _scale(min(xs), max(xs), _LOSS_LEFT, _LOSS_RIGHT, logarithmic=False)
    line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in finite)
    label = f"Loss of rank {curve.rank} by {curve.axis}{', logarithmic' if logarithmic else ''}"
    parts = [
        *_axes(curve, xs, ys, label),
        Markup('<polyline class="loss" points="{}"/>').format(line),
        *_non_finite(curve, x_of),
        *_marks(curve, x_of),
    ]
    head = Markup('<svg role="img" aria-label="{}" viewBox="0 0 {} {}">').format(label, _LOSS_WIDTH, _HEIGHT)
    return head + Markup("").join(parts) + Markup("</svg>")


def _scale(low: float, high: float, begin: int, end: int, *, logarithmic: bool) -> Callable[[float], float]:
    def place(value: float) -> float:
        return math.log(value) if logarithmic else value

    width = place(high) - place(low) or 1.0
    return lambda value: begin + (end - begin) * (place(value) - place(low)) / width


def _axes(curve: LossCurve, xs: Sequence[float], ys: Sequence[float], label: str) -> Iterator[Markup]:
    for y, value in ((_BOTTOM, min(ys)), (_TOP, max(ys))):
        yield Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
            _LOSS_LEFT, _LOSS_RIGHT, y, y
        )
        yield Markup('<text class="soft" x="{}" y="{}" text-anchor="end">{:.4g}</text>').format(
            _LOSS_LEFT - 8, y + 4, value
        )
    show: Callable[[float], str] = moment if curve.axis == "time" else "{:.0f}".format
    yield Markup('<text class="soft" x="{}" y="{}">{}</text>').format(_LOSS_LEFT, _HEIGHT - 8, show(min(xs)))
    middle = Markup('<text class="soft" x="{}" y="{}" text-anchor="middle">{}</text>')
    yield middle.format((_LOSS_LEFT + _LOSS_RIGHT) / 2, _HEIGHT - 8, label)
    last = Markup('<text class="soft" x="{}" y="{}" text-anchor="end">{}</text>')
    yield last.format(_LOSS_RIGHT, _HEIGHT - 8, show(max(xs)))


def _non_finite(curve: LossCurve, x_of: Callable[[float], float]) -> Iterator[Markup]:
    for at, value in curve.points:
        if not math.isfinite(value) and math.isfinite(at):
            shape = '<circle class="mark critical" cx="{:.1f}" cy="{}" r="4"><title>{} at {}</title></circle>'
            yield Markup(shape).format(min(max(x_of(at), _LOSS_LEFT), _LOSS_RIGHT), _TOP, value, at)


def _marks(curve: LossCurve, x_of: Callable[[float], float]) -> Iterator[Markup]:
    for each in curve.marks:
        x = min(max(x_of(each.step), _LOSS_LEFT), _LOSS_RIGHT)
        shape = (
            '<line class="alarm {0}" x1="{1:.1f}" x2="{1:.1f}" y1="{2}" y2="{3}"><title>{4}</title></line>'
        )
        yield Markup(shape).format(each.severity.value, x, _TOP, _BOTTOM, printable(each.text))
