"""The losses in the boxes of a run: that of one rank judged, and those of the ranks beside each other.

Beside each other they show who had NaN first, and whose data differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rankwatch.blackbox import earlier_attempts
from rankwatch.conventions.vocabulary import DATASET, LOSS, TOKENS
from rankwatch_diagnosis.loss.detection import LossVerdict, detect
from rankwatch_diagnosis.loss.reading import COLUMNS, ReadCounts, StepValues
from rankwatch_diagnosis.run.box_records import scalars_of, work_of
from rankwatch_diagnosis.run.boxes import Box, Boxes, readable_boxes

SKEW = 0.25
"""Share by which the loss of a rank with other data differs, as in RankwatchLossDiverging, `data_skew`."""
_MOST_EARLIER_RECORDS = 1 << 17
"""Of the box of an earlier attempt; its newest count."""
_LEAST_RANKS = 3
_STEPS = 200
_LEAST_STEPS = 50


def judge_loss(
    boxes: Boxes, folders: Iterable[Path] = (), *, plateau_steps: int = 0
) -> tuple[int, LossVerdict] | None:
    """Return rank and findings of the lowest rank that reports a loss; None where none does.

    folders: of the boxes, where those of earlier attempts are kept.
    """
    for rank, box in boxes.by_rank.items():
        if any(scalars_of(box, LOSS)):
            paths = [
                path for folder in folders for of, _, path in earlier_attempts.listed(folder) if of == rank
            ]
            earlier = readable_boxes(paths, most_records=_MOST_EARLIER_RECORDS)
            return rank, detect(
                _rows(box),
                ReadCounts(),
                new_levels=frozenset(_other_data(box)),
                plateau_steps=plateau_steps,
                earlier=(_rows(each) for each in earlier if each.header.identity.run == boxes.run),
            )
    return None


def _other_data(box: Box) -> Iterator[int]:
    """Yield steps from which the data are others, as the run says."""
    last: float | None = None
    for _, step, value in scalars_of(box, DATASET):
        if value != last:
            yield step
        last = value


def _rows(box: Box) -> Iterator[StepValues]:
    for step, found in groupby(scalars_of(box, *COLUMNS), key=itemgetter(1)):
        yield StepValues(step, **{name: value for name, _, value in found})


class RankLosses(NamedTuple):
    """Ready for JSON."""

    first_non_finite_step: int | None
    """None where all losses are finite."""
    first_non_finite_ranks: tuple[int, ...]
    """Those that had it at that step; empty where all had it at once, which no rank is to blame for."""
    skewed_ranks: Mapping[int, float]
    """Rank -> its loss as a multiple of the median rank's, as reported or per token, whichever is nearer."""


def compare_losses(boxes: Boxes) -> RankLosses:
    """Compare the losses of ranks that report one of their own.

    A loss that is averaged before it is reported is the same on all, and shows nothing here.
    """
    losses: dict[int, dict[int, float]] = {}
    for rank, box in boxes.by_rank.items():
        for _, step, value in scalars_of(box, LOSS):
            losses.setdefault(rank, {}).setdefault(step, value)
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
    """Yield words for people; nothing where there is nothing to say."""
    if found.first_non_finite_ranks:
        ranks = ", ".join(map(str, found.first_non_finite_ranks[:8]))
        yield f"not finite first on rank {ranks}, at step {found.first_non_finite_step}"
    for rank, ratio in list(found.skewed_ranks.items())[:8]:
        times = f"{ratio:.2f} times the median rank's, also per token"
        yield f"that of rank {rank} is {times}: are its data others?"


def _skewed(boxes: Boxes, losses: Mapping[int, Mapping[int, float]]) -> Iterator[tuple[int, float]]:
    """Yield ranks as the rule does: one counts only if its loss as reported and per token both say so."""
    steps = sorted(set.intersection(*(set(each) for each in losses.values()))) if losses else []
    steps = [step for step in steps if all(math.isfinite(each[step]) for each in losses.values())][-_STEPS:]
    if len(losses) < _LEAST_RANKS or len(steps) < _LEAST_STEPS:
        return
    levels = {rank: median(each[step] for step in steps) for rank, each in losses.items()}
    tokens = {}
    for rank in losses:
        amounts = [amount for unit, _, amount in work_of(boxes.by_rank[rank]) if unit == TOKENS]
        tokens[rank] = median(amounts) if amounts else None
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
