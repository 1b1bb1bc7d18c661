"""The two pictures of the page, as JSON.

The heat map shows how far each rank lies above its peers in each step. The timeline of the worst step shows
what its ranks do as the replay has it, and the critical path.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rankwatch.untrusted.text import printable
from rankwatch_diagnosis.operations.groups import Floats, Ints
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.by_rank import ByRank, RankRow
from rankwatch_diagnosis.straggler.case import Case
from rankwatch_diagnosis.straggler.graph.critical_path import Stretch, Timeline, critical_path, timeline
from rankwatch_diagnosis.straggler.verdict import Verdict

_MOST_ROWS, _MOST_COLUMNS = 240, 400
"""Cells that a screen can show; larger jobs are binned."""
_LIMITS = (0.05, 0.1, 0.25)
"""Residuals at which the colour is full: the first one that the worst window of a rank does not exceed."""
_LARGEST = 9_999
"""Thousandths."""
_RANKS_OF_EVENT = 8
_MOST_LANES = 24
_MOST_BARS = 4_000
_VISIBLE = 1 / 1_500
"""Of the step: what is shorter is thinner than a pixel."""
_WAIT = 1 / 300
"""Of the step: shorter waits are not drawn."""
_LONGEST_NAME = 120
_LEAST_SHARE = 0.001
"""Of the path: what holds less is not listed."""


def heat_map(case: Case, by_rank: ByRank, verdict: Verdict) -> dict[str, object]:
    """Draw ranks as rows in the order of stage, replica and number; values are thousandths, null for gaps."""
    of_rank = {each.rank: each for each in by_rank.rows}
    placed = sorted(of_rank.values(), key=lambda each: (each.stage, each.replica, each.rank))
    index = np.searchsorted(case.ranks, [each.rank for each in placed])
    rows = _bins([each.stage for each in placed], _MOST_ROWS)
    columns = _bins([0] * len(case.steps), _MOST_COLUMNS)
    values, farthest = _binned(by_rank.residual[:, index].T, rows, columns)
    worst = max((each.worst_residual_ratio for each in by_rank.rows), default=0.0)
    return {
        "rows": [_row(placed[row]) for row in rows],
        "columns": [[int(case.steps[each.start]), int(case.steps[each.stop - 1])] for each in columns],
        "values": [
            [
                (None if math.isnan(value) else max(-_LARGEST, min(_LARGEST, round(1e3 * value))))
                for value in row
            ]
            for row in values.tolist()
        ],
        "farthest": case.ranks[index][farthest].tolist() if len(rows) < len(placed) else [],
        "limit": next((each for each in _LIMITS if worst <= each), _LIMITS[-1]),
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
    """Put neighbours into one cell, never across two parts; single ones as long as there is room."""
    size = math.ceil(len(parts) / most)
    edges = [0, *(at for at in range(1, len(parts)) if parts[at] != parts[at - 1]), len(parts)]
    return [
        slice(at, min(at + size, end)) for first, end in pairwise(edges) for at in range(first, end, size)
    ]


def _binned(residual: Floats, rows: Sequence[slice], columns: Sequence[slice]) -> tuple[Floats, Ints]:
    """Return (row, column): the mean over the steps of a bin, of the rank whose mean is farthest from 0; and
    the index of that rank.
    """
    starts = [each.start for each in columns]
    seen = np.isfinite(residual)
    count = np.add.reduceat(seen, starts, axis=1, dtype=np.int64)
    total = np.add.reduceat(np.where(seen, residual, 0.0), starts, axis=1)
    mean = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    far = np.nan_to_num(np.abs(mean), nan=-1.0)
    farthest = np.array([each.start + np.argmax(far[each], axis=0) for each in rows])
    return np.take_along_axis(mean, farthest, axis=0), farthest


def _words(ranks: int, rows: Sequence[slice], steps: int, columns: Sequence[slice]) -> str:
    """Say what a cell is, where it is more than one rank in one step."""
    parts = []
    if len(columns) < steps:
        parts.append(f"the mean over {columns[0].stop} steps")
    if len(rows) < ranks:
        parts.append(f"the farthest of {max(each.stop - each.start for each in rows)} ranks")
    return f"a cell is {', and of it '.join(parts)}" if parts else ""


def _events(case: Case, verdict: Verdict, columns: Sequence[slice]) -> list[dict[str, object]]:
    """Return the single long steps, which the map leaves out, and where they would stand."""
    starts = case.steps[[each.start for each in columns]]
    return [
        {
            "column": int(np.searchsorted(starts, int(str(each["step"])))),
            "text": event_words(each),
        }
        for each in verdict.events
    ]


def event_words(event: Mapping[str, object]) -> str:
    """Say it as `step 20 lost 1.5 s in backward; late: rank 3`."""
    lost = f"{float(str(event['lost_seconds'])):.3g} s"
    operation = printable(str(event["operation"]))
    return f"step {event['step']} lost {lost} in {operation}{_late(event['ranks'])}"


def _late(ranks: object) -> str:
    if not isinstance(ranks, list) or not ranks:
        return ", and no rank came late"
    shown = ", ".join(map(str, ranks[:_RANKS_OF_EVENT]))
    return f"; late: rank {shown}" + (" and more" if len(ranks) > _RANKS_OF_EVENT else "")


class Share(NamedTuple):
    """What holds a part of the critical path."""

    what: str
    seconds: float


class WorstStep(NamedTuple):
    """The step that took longest of those that were judged."""

    step: int
    seconds: float
    shares: tuple[Share, ...]
    """Shares of its critical path, most first: ranks, transfers and pauses."""
    picture: dict[str, object]


def worst_step(case: Case, by_rank: ByRank) -> WorstStep:
    """Draw the worst step: its timeline and its critical path, in the replay with the recorded durations."""
    times = timeline(case.replay, case.seconds)
    worst = int(np.argmax(case.step_seconds))
    rows = np.flatnonzero(case.step == worst)
    path = critical_path(case.replay, times, rows)
    shares = _shares(case, path)
    lanes = _lanes(case, by_rank, rows, path)
    seconds = float(case.step_seconds[worst])
    picture: dict[str, object] = {
        "seconds": seconds,
        "lanes": [{"rank": each.rank, "stage": each.stage, "named": each.named} for each in lanes],
        **_pieces(case, times, rows, path, [each.rank for each in lanes], seconds),
    }
    return WorstStep(int(case.steps[worst]), seconds, shares, picture)


def _shares(case: Case, path: Sequence[Stretch]) -> tuple[Share, ...]:
    found: dict[str, float] = defaultdict(float)
    for each in path:
        transfer = case.table.kind[each.row] == Kind.COMMUNICATION
        what = "transfers" if transfer else f"rank {case.table.rank[each.row]}"
        found[what] += each.ends - each.begins
        found["pauses"] += each.begins - each.since
    least = _LEAST_SHARE * sum(found.values())
    most_first = sorted(found.items(), key=lambda each: -each[1])
    return tuple(Share(what, seconds) for what, seconds in most_first if seconds > least)


def _lanes(case: Case, by_rank: ByRank, rows: Ints, path: Sequence[Stretch]) -> list[RankRow]:
    """Choose of many ranks those with most of the path, the named ones, and those of highest residual."""
    on_path: dict[int, float] = defaultdict(float)
    for each in path:
        on_path[int(case.table.rank[each.row])] += each.ends - each.since
    there = set(np.unique(case.table.rank[rows]).tolist())
    candidates = [each for each in by_rank.rows if each.rank in there]
    candidates.sort(key=lambda each: (-on_path[each.rank], not each.named))  # stable: then by residual
    return sorted(candidates[:_MOST_LANES], key=lambda each: (each.stage, each.replica, each.rank))


def _pieces(
    case: Case, times: Timeline, rows: Ints, path: Sequence[Stretch], ranks: Sequence[int], seconds: float
) -> dict[str, object]:
    lane = {rank: number for number, rank in enumerate(ranks)}
    rows = rows[np.isin(case.table.rank[rows], ranks)]
    critical = {each.row for each in path}
    length = times.ends[rows] - times.begins[rows]
    shown = rows[(length >= _VISIBLE * seconds) | np.isin(rows, list(critical))]
    if len(shown) > _MOST_BARS:
        length = times.ends[shown] - times.begins[shown] + seconds * np.isin(shown, list(critical))
        shown = np.sort(shown[np.argsort(-length, kind="stable")[:_MOST_BARS]])
    waiting = rows[times.begins[rows] - times.arrives[rows] >= _WAIT * seconds]
    # Names in the order of their first use: a table may hold many that the step does not.
    names: dict[int, int] = {}
    table = case.table
    return {
        "bars": [
            [
                lane[int(table.rank[row])],
                round(float(times.begins[row]), 7),
                round(float(times.ends[row]), 7),
                names.setdefault(int(table.operation[row]), len(names)),
                int(table.kind[row]),
                int(row in critical),
            ]
            for row in shown.tolist()
        ],
        "waits": [
            [
                lane[int(table.rank[row])],
                round(float(times.arrives[row]), 7),
                round(float(times.begins[row]), 7),
                names.setdefault(int(table.operation[row]), len(names)),
            ]
            for row in waiting.tolist()
        ],
        "line": [
            [lane[int(table.rank[each.row])], round(float(each.since), 7), round(float(each.ends), 7)]
            for each in path
            if int(table.rank[each.row]) in lane
        ],
        "operations": [printable(table.operations[each])[:_LONGEST_NAME] for each in names],
    }
