"""The review of a run as Markdown, for a post-incident review: what is known is filled in, and the questions
that only people can answer are left open."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rankwatch import __version__
from rankwatch.untrusted.text import printable
from rankwatch_diagnosis.loss.anomaly import Severity
from rankwatch_diagnosis.review.model import (
    QUESTIONS,
    Judgement,
    RankPhases,
    RunReview,
    checkpoint_row,
    facts,
    impact,
    when,
    where,
)

_SPECIAL = re.compile(r"([\\`*{}\[\]<>#|~!&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_MOST_RANKS = 64


def markdown(review: RunReview) -> str:
    """Write one document; its texts cannot change its structure, whatever they hold."""
    parts = (
        _head(review),
        _events(review),
        _impact(review),
        _judgements(review.judgements),
        _phases(review.phases),
        _checkpoints(review),
        _unseen(review),
        _questions(),
    )
    return "\n".join(line for part in parts for line in (*part, "")).rstrip() + "\n"


def plain(text: str) -> str:
    """Escape text so that Markdown shows it as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", printable(text))


def _head(review: RunReview) -> Iterator[str]:
    yield f"# Run {plain(review.run)}: {plain(review.result)}"
    yield ""
    yield plain(review.why[:1].upper() + review.why[1:]) + "."
    yield ""
    yield from _table(("", ""), facts(review).items())
    yield ""
    yield f"From {plain(review.source)}, by rankwatch {plain(__version__)}. Times are UTC."


def _events(review: RunReview) -> Iterator[str]:
    yield "## What happened when"
    yield ""
    if not review.events:
        yield "Nothing is known."
        return
    mark = {Severity.CRITICAL: "**critical**", Severity.WARNING: "warning", Severity.INFO: ""}
    yield "| when | what | where | severity | shown by |"
    yield "| --- | --- | --- | --- | --- |"
    for each in review.events:
        cells = (plain(when(each)), plain(each.text), plain(where(each)), mark[each.severity])
        yield f"| {' | '.join((*cells, plain(each.source)))} |"
    if review.events_left_out:
        yield ""
        yield f"{review.events_left_out} events of less weight are left out."


def _impact(review: RunReview) -> Iterator[str]:
    yield "## Impact"
    yield ""
    rows = list(impact(review.goodput))
    if not rows:
        yield "Not known: no account of the run's time could be read."
        return
    yield "Each second of each rank is in one state. A rank has one GPU, so these are GPU-hours."
    yield ""
    yield from _table(("state", "GPU-hours", "share", "cost"), rows)


def _judgements(found: Sequence[Judgement]) -> Iterator[str]:
    yield "## Findings and evidence"
    for each in found:
        yield ""
        weight = "" if each.severity is Severity.INFO else f" ({each.severity.value})"
        yield f"**{plain(each.subject)}**{weight}: {plain(each.sentence)}"
        if each.evidence:
            yield ""
            yield from (f"- {plain(line)}" for line in each.evidence)


def _phases(found: Sequence[RankPhases]) -> Iterator[str]:
    yield "## Where the time of a step goes"
    yield ""
    if not found:
        yield "Not known: no rank shows a whole step."
        return
    names = list(dict.fromkeys(name for each in found for name in each.seconds))
    rows = (
        (
            str(each.rank),
            each.node,
            *(f"{each.seconds.get(name, 0.0) / (each.total or 1.0):.1%}" for name in names),
        )
        for each in found[:_MOST_RANKS]
    )
    yield from _table(("rank", "node", *names), rows)
    if len(found) > _MOST_RANKS:
        yield ""
        yield f"and {len(found) - _MOST_RANKS} more ranks"


def _checkpoints(review: RunReview) -> Iterator[str]:
    yield "## Checkpoints"
    yield ""
    yield plain(review.checkpoint_summary or "none known")
    if review.checkpoints:
        yield ""
        head = ("ended", "operation", "step", "result", "took", "path")
        yield from _table(head, map(checkpoint_row, review.checkpoints))


def _unseen(review: RunReview) -> Iterator[str]:
    yield "## What could not be seen"
    yield ""
    yield from ([f"- {plain(each)}" for each in review.unseen] or ["Nothing is missing."])


def _questions() -> Iterator[str]:
    yield "## Questions for people"
    for each in QUESTIONS:
        yield ""
        yield f"### {each}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(map(plain, head))} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    for row in rows:
        yield f"| {' | '.join(map(plain, row))} |"
