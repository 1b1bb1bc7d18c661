"""The time line of a run as a picture: attempts as bars, and what happened, in a lane for each kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from rankwatch.untrusted.text import printable
from rankwatch_diagnosis.goodput.report import moment
from rankwatch_diagnosis.review.model import Event, EventKind
from rankwatch_diagnosis.review.words import when

_LANE, _LEFT, _RIGHT, _WIDTH, _FOOT = 26, 96, 1000, 1016, 24
_LEAST_WIDTH = 3.0
_TICKS = 4


def time_line(events: Sequence[Event], started: float, ended: float) -> Markup:
    """An SVG of the events between two moments in Unix time; each says in its title what it is."""
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
    if event.kind is EventKind.ATTEMPT and event.until is None and not _is_end(event):
        end = float(_RIGHT)  # it runs
    if end - x > _LEAST_WIDTH:
        shape = '<rect class="mark {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="10" rx="2">{}</rect>'
        return Markup(shape).format(kind, x, y - 5, end - x, title)
    return Markup('<circle class="mark {}" cx="{:.1f}" cy="{:.1f}" r="4.5">{}</circle>').format(
        event.severity.value, x, y, title
    )


def _is_end(event: Event) -> bool:
    return " ends: " in event.text
