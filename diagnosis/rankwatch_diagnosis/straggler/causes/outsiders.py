"""Ranks that a job has and a table lacks: a wait for one of them looks like a transfer."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.straggler.arrays import Floats, Ints, nan_median
from rankwatch_diagnosis.straggler.causes.links import Links
from rankwatch_diagnosis.straggler.finding import Case
from rankwatch_diagnosis.straggler.graph.messages import NONE, point_to_point

_STANDARD_ERRORS = 3.0
_LEAST_STEPS = 8


def ranks_are_missing(case: Case) -> bool:
    """Ranks count from 0 without a gap, and what is received in a pipeline has been sent."""
    if len(case.ranks) <= int(case.ranks[-1]):
        return True
    _, receives = point_to_point(case.table)
    return bool(receives.any() and (case.replay.meetings.waits_for[receives] == NONE).mean() > 0.5)


def waits_for_outsiders(case: Case, links: Links, slow: NDArray[np.bool_]) -> bool:
    """Whether slow transfers get shorter by as much as the members come later, as a wait for others does.

    `slow` is (step, link). A transfer that is slow by itself takes as long whenever its members come.
    """
    arrival = _last_arrivals(case, links)
    scores = [
        _rank_correlation(arrival[:, index], links.seconds[:, index], slow[:, index])
        for index in np.flatnonzero(slow.any(axis=0)).tolist()
    ]
    return bool(scores) and float(np.median(scores)) < -_STANDARD_ERRORS


def _last_arrivals(case: Case, links: Links) -> Floats:
    """(step, link): seconds from the first operation of the step to the last arrival, of the latest rank."""
    begins = np.full((len(case.steps), len(case.ranks)), np.inf)
    np.minimum.at(begins, (case.step, case.rank), case.table.start_seconds)
    step, rank = case.step[links.rows], case.rank[links.rows]
    arrival = np.full(links.seconds.shape, -np.inf)
    since = case.table.start_seconds[links.rows] - begins[step, rank]
    np.maximum.at(arrival, (step, links.link), since)
    return np.where(np.isfinite(arrival), arrival, np.nan)


def _rank_correlation(one: Floats, other: Floats, slow: NDArray[np.bool_]) -> float:
    """Spearman's, in standard errors; slow steps and others each around their own median."""
    seen = np.isfinite(one) & np.isfinite(other)
    if np.count_nonzero(seen) < _LEAST_STEPS:
        return 0.0
    numbers: list[Ints] = []
    for values in (one, other):
        centred = np.where(slow, values - nan_median(values[slow]), values)
        if not slow.all():
            centred[~slow] -= nan_median(values[~slow])
        numbers.append(np.argsort(np.argsort(centred[seen])))
    correlation = float(np.corrcoef(numbers[0], numbers[1])[0, 1])
    return correlation * math.sqrt(len(numbers[0]) - 1)
