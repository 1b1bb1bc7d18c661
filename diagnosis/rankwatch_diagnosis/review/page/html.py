"""The page itself. Its pictures are SVG in the file; it has no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from rankwatch import __version__
from rankwatch.untrusted.text import printable
from rankwatch_diagnosis.pages.html_page import part_of, policy, style_of, template
from rankwatch_diagnosis.review.model import RankPhases, RunReview
from rankwatch_diagnosis.review.page.loss_picture import loss_picture
from rankwatch_diagnosis.review.page.time_line import time_line
from rankwatch_diagnosis.review.words import checkpoint_row, facts, impact, when, where

_PACKAGE = "rankwatch_diagnosis.review.page"
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
    """The page about a run. Everything on it that comes from a run is escaped."""
    style = style_of(_PACKAGE, "review.css")
    names = list(dict.fromkeys(name for each in review.phases for name in each.seconds))
    began = min((each.at for each in review.events), default=review.started or 0.0)
    ended = max((each.until or each.at for each in review.events), default=began)
    return template(part_of(_PACKAGE, "review.html"), {"printable": printable}).render(
        policy=policy(style),
        style=Markup(style),
        version=__version__,
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
