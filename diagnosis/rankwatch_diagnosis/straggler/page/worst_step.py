"""The picture of the worst step: what its ranks do as the replay has it, and the critical path, as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankwatch.untrusted.text import printable
from rankwatch_diagnosis.operations.groups import Ints
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.by_rank import ByRank, RankRow
from rankwatch_diagnosis.straggler.case import Case
from rankwatch_diagnosis.straggler.graph.critical_path import Stretch, Timeline, critical_path, timeline

_MOST_LANES = 24
_MOST_BARS = 4_000
_VISIBLE = 1 / 1_500
"""Of the step: what is shorter is thinner than a pixel."""
_WAIT = 1 / 300
"""Of the step: shorter waits are not drawn."""
_LONGEST_NAME = 120
_LEAST_SHARE = 0.001
"""Of the path: what holds less is not listed."""


class Share(NamedTuple):
    """What holds a part of the critical path."""

    what: str
    seconds: float


class WorstStep(NamedTuple):
    """The step that took longest of those that were judged."""

    step: int
    seconds: float
    shares: tuple[Share, ...]
    """Where its critical path lies, most first: ranks, transfers and pauses."""
    picture: dict[str, object]


def worst_step(case: Case, by_rank: ByRank) -> WorstStep:
    """Its timeline and its critical path, in the replay with the recorded durations."""
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
    """Of many ranks those that hold most of the path, the named ones, and those with the highest residual."""
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
    names = _Names(case.table.operations)
    table = case.table
    return {
        "bars": [
            [
                lane[int(table.rank[row])],
                _rounded(times.begins[row]),
                _rounded(times.ends[row]),
                names.number(int(table.operation[row])),
                int(table.kind[row]),
                int(row in critical),
            ]
            for row in shown.tolist()
        ],
        "waits": [
            [
                lane[int(table.rank[row])],
                _rounded(times.arrives[row]),
                _rounded(times.begins[row]),
                names.number(int(table.operation[row])),
            ]
            for row in waiting.tolist()
        ],
        "line": [
            [lane[int(table.rank[each.row])], _rounded(each.since), _rounded(each.ends)]
            for each in path
            if int(table.rank[each.row]) in lane
        ],
        "operations": names.used,
    }


class _Names:
    """Names of operations in the order of their first use: a table may hold many that the step does not."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._numbers: dict[int, int] = {}
        self.used: list[str] = []

    def number(self, operation: int) -> int:
        """Place of an operation among those used."""
        if operation not in self._numbers:
            self._numbers[operation] = len(self.used)
            self.used.append(printable(self._names[operation])[:_LONGEST_NAME])
        return self._numbers[operation]


def _rounded(seconds: float) -> float:
    return round(float(seconds), 7)
