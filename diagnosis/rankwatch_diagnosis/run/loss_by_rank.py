"""What the losses of several ranks show beside each other: who had NaN first, and whose data differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions import LOSS, TOKENS
from rankwatch_diagnosis.run.boxes import Box, Boxes

SKEW = 0.25
"""Share by which the loss of a rank with other data differs, as in RankwatchLossDiverging, `data_skew`."""
_LEAST_RANKS = 3
_STEPS = 200
_LEAST_STEPS = 50


class RankLosses(NamedTuple):
    """Ready for JSON."""

    first_non_finite_step: int | None
    """None where all losses are finite."""
    first_non_finite_ranks: tuple[int, ...]
    """Those that had it at that step; empty where all had it at once, which no rank is to blame for."""
    skewed_ranks: Mapping[int, float]
    """Rank -> its loss as a multiple of the median rank's, as reported or per token, whichever is nearer."""


def compare_losses(boxes: Boxes) -> RankLosses:
    """Of ranks that report a loss of their own. A loss that is averaged before it is reported is the same on
    all, and shows nothing here."""
    losses = {rank: found for rank, box in boxes.by_rank.items() if (found := _losses(box))}
    bad = {
        rank: min(step for step, loss in of_rank.items() if not math.isfinite(loss))
        for rank, of_rank in losses.items()
        if not all(map(math.isfinite, of_rank.values()))
    }
    first = min(bad.values(), default=None)
    ranks = tuple(sorted(rank for rank, step in bad.items() if step == first))
    known = [rank for rank, of_rank in losses.items() if first is not None and min(of_rank) <= first]
    named = ranks if len(ranks) < len(known) else ()
    return RankLosses(first, named, dict(_skewed(boxes, losses)))


def loss_parts(found: RankLosses) -> Iterator[str]:
    """For people; nothing where there is nothing to say."""
    if found.first_non_finite_ranks:
        ranks = ", ".join(map(str, found.first_non_finite_ranks[:8]))
        yield f"not finite first on rank {ranks}, at step {found.first_non_finite_step}"
    for rank, ratio in list(found.skewed_ranks.items())[:8]:
        times = f"{ratio:.2f} times the median rank's, also per token"
        yield f"that of rank {rank} is {times}: are its data others?"


def _losses(box: Box) -> dict[int, float]:
    found: dict[int, float] = {}
    for record in box.records:
        if record.kind == RecordKind.SCALAR and box.names.get(record.name) == LOSS:
            value, step = layout.SCALAR.unpack_from(record.payload)
            found.setdefault(step, value)
    return found


def _tokens(box: Box) -> float | None:
    amounts = [
        layout.WORK.unpack_from(record.payload)[0]
        for record in box.records
        if record.kind == RecordKind.WORK and box.names.get(record.name) == TOKENS
    ]
    return median(amounts) if amounts else None


def _skewed(boxes: Boxes, losses: Mapping[int, Mapping[int, float]]) -> Iterator[tuple[int, float]]:
    """As the rule does: a rank counts only if its loss as reported and per token both say so."""
    steps = sorted(set.intersection(*(set(each) for each in losses.values()))) if losses else []
    steps = [step for step in steps if all(math.isfinite(each[step]) for each in losses.values())][-_STEPS:]
    if len(losses) < _LEAST_RANKS or len(steps) < _LEAST_STEPS:
        return
    levels = {rank: median(each[step] for step in steps) for rank, each in losses.items()}
    tokens = {rank: _tokens(boxes.by_rank[rank]) for rank in losses}
    middle = median(levels.values())
    known = [each for each in tokens.values() if each]
    if middle <= 0.0 or len(known) < len(losses):
        return
    for rank, level in levels.items():
        ratio = level / middle
        by_token = ratio * median(known) / (tokens[rank] or math.inf)
        nearer = min(ratio, by_token, key=lambda each: abs(each - 1.0))
        if (ratio - 1.0) * (by_token - 1.0) > 0.0 and abs(nearer - 1.0) > SKEW:
            yield rank, nearer
