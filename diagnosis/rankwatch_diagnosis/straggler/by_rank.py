"""Every rank beside its peers: how far it lies above them, where its time goes, and what it costs.

A verdict names the ranks that are certain to be slow. This is what a person looks at next: all ranks, the
residual of each in every step, and the price of each by replay. It names nobody.

    residual = own time / (own time - excess) - 1

Own time is compute and host work. The excess of compute is that of the engine (role and difficulty of the
microbatch taken away, then the median of the peers); that of host work is the seconds above the peers'.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.groups import Floats, Groups, Ints
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.case import Case
from rankwatch_diagnosis.straggler.graph.replay import slowdown
from rankwatch_diagnosis.straggler.persistence import against_peers
from rankwatch_diagnosis.straggler.robust import largest_stretch, nan_median, sigma
from rankwatch_diagnosis.straggler.verdict import Verdict

_LEAST_PEERS = 2
"""Two ranks are shown beside each other, though neither can be called the odd one."""
MOST_REPLAYED_ROWS = 60_000_000
"""Of all replays together, which takes a few seconds; ranks with less excess than those replayed get none."""
_LEAST_REPLAYS = 8
_LEAST_FAIR = 0.01
"""Part of a rank's usual own time that no step can go below without its excess: a guard for the ratio."""
_LEAST_EXCESS = 1e-4
"""Of the step: what is less costs nothing that could be shown."""


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One rank. Seconds are means over the steps, and own, transfer and wait together are the step."""

    rank: int
    stage: int
    replica: int
    named: bool
    """By a cause that is certain, be it the verdict or not."""
    residual_ratio: float
    """Its own work beyond its peers', median over the steps: 0.08 for 8 %; NaN where nothing compares."""
    compared_with: str
    """`peers`, `one peer` or `its own past`."""
    worst_first_step: int
    worst_last_step: int
    """The window of steps in which the residual is high."""
    worst_residual_ratio: float
    """Median over that window; NaN where there is none."""
    compute_seconds: float
    data_loading_seconds: float
    other_seconds: float
    transfer_seconds: float
    wait_seconds: float
    """For other ranks, and pauses."""
    slowdown: float
    """Step time over the step time with this rank at its peers' level; NaN where its excess was too small to
    be replayed among so many ranks."""
    lost_rank_seconds: float
    """Seconds that this costs, times the ranks in the table; NaN likewise."""


class ByRank(NamedTuple):
    """All ranks, those that the verdict names first, then by their residual."""

    rows: tuple[RankRow, ...]
    step_seconds: float
    """Mean of the replayed steps."""
    residual: Floats
    """(step, rank), in the order of the case; NaN where there is nothing to compare with."""


class _Excess(NamedTuple):
    """What each rank takes beyond its peers; (step, rank)."""

    compute: Floats
    """Logarithm."""
    host: Floats
    """Seconds."""
    residual: Floats
    """Of both, as a ratio."""


def look_by_rank(case: Case, verdict: Verdict, *, most_replayed_rows: int = MOST_REPLAYED_ROWS) -> ByRank:
    """Look at every rank of the case.

    case, verdict: as `engine.examine` returns both.
    most_replayed_rows: of all replays together.
    """
    named = {*verdict.ranks, *(rank for each in verdict.causes if each.certain for rank in each.ranks)}
    seconds = {kind: np.nan_to_num(case.sums(case.table.kind == kind)) for kind in Kind}
    compute, host = seconds[Kind.COMPUTE], seconds[Kind.DATA_LOADING] + seconds[Kind.OTHER]
    excess = _excess(case, compute, host)
    windows = [_worst_window(residual, case.limits.steps) for residual in excess.residual.T]
    most = max(_LEAST_REPLAYS, most_replayed_rows // max(1, len(case.table)))
    prices = _prices(case, excess, compute, host, windows, most) | _prices_of_causes(case, verdict)
    present = np.isfinite(case.table.spans()[0])
    stage = case.stage_of_rank
    peers = np.bincount(stage)[stage]
    rows = []
    for index, rank in enumerate(case.ranks.tolist()):
        there, window, price = present[:, index], windows[index], prices.get(index, math.nan)
        means = {kind: float(each[there, index].mean()) for kind, each in seconds.items()}
        row = RankRow(
            rank=rank,
            stage=int(stage[index]),
            replica=int(case.replica_of_rank[index]),
            named=rank in named,
            residual_ratio=float(nan_median(excess.residual[:, index])),
            compared_with={1: "its own past", 2: "one peer"}.get(int(peers[index]), "peers"),
            worst_first_step=int(case.steps[window.first]),
            worst_last_step=int(case.steps[window.end - 1]),
            worst_residual_ratio=window.size,
            compute_seconds=means[Kind.COMPUTE],
            data_loading_seconds=means[Kind.DATA_LOADING],
            other_seconds=means[Kind.OTHER],
            transfer_seconds=means[Kind.COMMUNICATION],
            wait_seconds=max(0.0, float(case.step_seconds[there].mean()) - math.fsum(means.values())),
            slowdown=price,
            lost_rank_seconds=float(case.step_seconds.sum()) * (1.0 - 1.0 / price) * len(case.ranks),
        )
        rows.append(row)
    rows.sort(key=lambda each: (not each.named, -np.nan_to_num(each.residual_ratio, nan=-np.inf), each.rank))
    return ByRank(tuple(rows), float(case.step_seconds.mean()), excess.residual)


def _excess(case: Case, compute: Floats, host: Floats) -> _Excess:
    logarithm = np.full(compute.shape, np.nan)
    visits, difficulty = case.visits, case.difficulty
    if visits is not None and difficulty is not None:
        residual = against_peers(difficulty.own, visits.stage, _LEAST_PEERS).values
        place = np.ix_(np.searchsorted(case.steps, visits.steps), np.searchsorted(case.ranks, visits.ranks))
        logarithm[place] = residual
    more = np.nan_to_num(against_peers(host, case.stage_of_rank, _LEAST_PEERS).values)
    without_compute = ~(compute > 0.0).any(axis=0)
    excess = compute * -np.expm1(-np.where(without_compute, 0.0, logarithm)) + more
    both = compute + host
    fair = np.maximum(both - excess, _LEAST_FAIR * nan_median(np.where(both > 0.0, both, np.nan), axis=0))
    return _Excess(logarithm, more, np.where(both > 0.0, excess / fair, np.nan))


class _Window(NamedTuple):
    first: int
    end: int
    size: float


def _worst_window(residual: Floats, least: int) -> _Window:
    """Return the stretch with the largest sum above half of what is in it; all steps if none stands out."""
    noise = sigma(np.diff(residual)) / math.sqrt(2.0)
    whole = _Window(0, len(residual), float(nan_median(residual)))
    half, found = noise / 2.0, whole
    for _ in range(3):  # the size depends on the window, and the window on the size
        first, end = largest_stretch(np.nan_to_num(residual - half, nan=-half))
        if end - first < least:
            return whole
        found = _Window(first, end, float(nan_median(residual[first:end])))
        half = max(found.size, noise) / 2.0
    return found


def _prices(
    case: Case, excess: _Excess, compute: Floats, host: Floats, windows: Sequence[_Window], most: int
) -> dict[int, float]:
    """Price ranks: index -> the slowdown that it causes; of at most so many ranks, those with most excess."""
    levels = [_level(excess, each, window) for each, window in enumerate(windows)]
    saved = np.array(
        [
            float(np.mean(compute[:, each] * -np.expm1(-slower) + more))
            for each, (slower, more) in enumerate(levels)
        ]
    )
    prices = dict.fromkeys(np.flatnonzero(saved < _LEAST_EXCESS * np.mean(case.step_seconds)).tolist(), 1.0)
    rows = Groups(case.rank, len(case.ranks)).parts()
    largest = [each for each in np.argsort(-saved, kind="stable").tolist() if each not in prices]
    for each in largest[:most]:
        seconds = case.seconds.copy()
        slower, more = levels[each]
        seconds[rows[each]] *= _factor(case, rows[each], slower, more, host[:, each])
        prices[each] = slowdown(case.step_seconds, case.replay.step_seconds(seconds))
    return prices


def _prices_of_causes(case: Case, verdict: Verdict) -> dict[int, float]:
    """Return the same of ranks that are a cause by themselves: one thing has one price."""
    alone = [each for each in verdict.causes if len(each.ranks) == 1]
    count = Counter(each.ranks for each in alone)
    return {
        int(np.searchsorted(case.ranks, each.ranks[0])): each.slowdown
        for each in alone
        if each.slowdown is not None and count[each.ranks] == 1
    }


def _level(excess: _Excess, index: int, window: _Window) -> tuple[Floats, Floats]:
    """Return what a rank takes beyond its peers for long, by step, never below 0: the logarithm of compute,
    and seconds of host work.

    Inside its worst window and outside of it: a fault of a few steps must not vanish in a median.
    """
    inside = np.zeros(len(excess.host), dtype=np.bool_)
    inside[window.first : window.end] = True
    compute, host = np.zeros(len(inside)), np.zeros(len(inside))
    for part in (inside, ~inside):
        if part.any():
            compute[part] = max(0.0, float(np.nan_to_num(nan_median(excess.compute[part, index]))))
            host[part] = max(0.0, float(excess.host[part, index].mean()))
    return compute, host


def _factor(case: Case, rows: Ints, slower: Floats, more: Floats, host: Floats) -> Floats:
    """Return by row of a rank what its peers would take, over what it takes."""
    step, kind = case.step[rows], case.table.kind[rows]
    left = 1.0 - np.minimum(1.0, more / np.maximum(host, 1e-12))
    return np.where(
        kind == Kind.COMPUTE,
        np.exp(-slower[step]),
        np.where(kind == Kind.COMMUNICATION, 1.0, left[step]),
    )
