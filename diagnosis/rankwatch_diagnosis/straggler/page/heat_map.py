"""The heat map of the page: how far each rank lies above its peers in each step, as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rankwatch.untrusted.text import printable
from rankwatch_diagnosis.operations.groups import Floats, Ints
from rankwatch_diagnosis.straggler.by_rank import ByRank, RankRow
from rankwatch_diagnosis.straggler.case import Case
from rankwatch_diagnosis.straggler.verdict import Verdict

_MOST_ROWS, _MOST_COLUMNS = 240, 400
"""Cells that a screen can show; larger jobs are binned."""
_LIMITS = (0.05, 0.1, 0.25)
"""Residuals at which the colour is full: the first one that the worst window of a rank does not exceed."""
_LARGEST = 9_999
"""Thousandths."""
_RANKS_OF_EVENT = 8


class _Binned(NamedTuple):
    values: Floats
    """(row, column): mean over the steps of a bin, of the rank whose mean is farthest from 0."""
    farthest: Ints
    """(row, column): index of that rank."""


def heat_map(case: Case, by_rank: ByRank, verdict: Verdict) -> dict[str, object]:
    """Rows are ranks in the order of stage, replica and number; values are thousandths, null for gaps."""
    of_rank = {each.rank: each for each in by_rank.rows}
    placed = sorted(of_rank.values(), key=lambda each: (each.stage, each.replica, each.rank))
    index = np.searchsorted(case.ranks, [each.rank for each in placed])
    rows = _bins([each.stage for each in placed], _MOST_ROWS)
    columns = _bins([0] * len(case.steps), _MOST_COLUMNS)
    binned = _binned(by_rank.residual[:, index].T, rows, columns)
    return {
        "rows": [_row(placed[row]) for row in rows],
        "columns": [[int(case.steps[each.start]), int(case.steps[each.stop - 1])] for each in columns],
        "values": [[_thousandths(value) for value in row] for row in binned.values.tolist()],
        "farthest": case.ranks[index][binned.farthest].tolist() if len(rows) < len(placed) else [],
        "limit": _limit(by_rank),
        "binned": _words(len(placed), rows, len(case.steps), columns),
        "events": _events(case, verdict, columns),
    }


def _row(ranks: Sequence[RankRow]) -> dict[str, object]:
    named = next((each.rank for each in ranks if each.named), None)
    return {
        "ranks": [ranks[0].rank, ranks[-1].rank],
        "stage": ranks[0].stage,
        "replica": ranks[0].replica,
        "named": named,
    }


def _bins(parts: Sequence[int], most: int) -> list[slice]:
    """Neighbours that share a cell, never across two parts; single ones as long as there is room."""
    size = math.ceil(len(parts) / most)
    edges = [0, *(at for at in range(1, len(parts)) if parts[at] != parts[at - 1]), len(parts)]
    return [
        slice(at, min(at + size, end)) for first, end in pairwise(edges) for at in range(first, end, size)
    ]


def _binned(residual: Floats, rows: Sequence[slice], columns: Sequence[slice]) -> _Binned:
    starts = [each.start for each in columns]
    seen = np.isfinite(residual)
    count = np.add.reduceat(seen, starts, axis=1, dtype=np.int64)
    total = np.add.reduceat(np.where(seen, residual, 0.0), starts, axis=1)
    mean = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    far = np.nan_to_num(np.abs(mean), nan=-1.0)
    farthest = np.array([each.start + np.argmax(far[each], axis=0) for each in rows])
    return _Binned(np.take_along_axis(mean, farthest, axis=0), farthest)


def _thousandths(value: float) -> int | None:
    return None if math.isnan(value) else max(-_LARGEST, min(_LARGEST, round(1e3 * value)))


def _limit(by_rank: ByRank) -> float:
    worst = max((each.worst_residual_ratio for each in by_rank.rows), default=0.0)
    return next((each for each in _LIMITS if worst <= each), _LIMITS[-1])


def _words(ranks: int, rows: Sequence[slice], steps: int, columns: Sequence[slice]) -> str:
    """What a cell is, where it is more than one rank in one step."""
    parts = []
    if len(columns) < steps:
        parts.append(f"the mean over {columns[0].stop} steps")
    if len(rows) < ranks:
        parts.append(f"the farthest of {max(each.stop - each.start for each in rows)} ranks")
    return f"a cell is {', and of it '.join(parts)}" if parts else ""


def _events(case: Case, verdict: Verdict, columns: Sequence[slice]) -> list[dict[str, object]]:
    """Single long steps, which the map leaves out, and where they would stand."""
    starts = case.steps[[each.start for each in columns]]
    return [
        {
            "column": int(np.searchsorted(starts, int(str(each["step"])))),
            "text": event_words(each),
        }
        for each in verdict.events
    ]


def event_words(event: Mapping[str, object]) -> str:
    """`step 20 lost 1.5 s in backward; late: rank 3`."""
    lost = f"{float(str(event['lost_seconds'])):.3g} s"
    operation = printable(str(event["operation"]))
    return f"step {event['step']} lost {lost} in {operation}{_late(event['ranks'])}"


def _late(ranks: object) -> str:
    if not isinstance(ranks, list) or not ranks:
        return ", and no rank came late"
    shown = ", ".join(map(str, ranks[:_RANKS_OF_EVENT]))
    return f"; late: rank {shown}" + (" and more" if len(ranks) > _RANKS_OF_EVENT else "")
