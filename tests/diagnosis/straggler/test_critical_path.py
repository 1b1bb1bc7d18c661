"""The critical path of a step is whoever came last, from its end back to its begin."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.case import Case
from rankwatch_diagnosis.straggler.graph.critical_path import Stretch, critical_path, timeline
from rankwatch_diagnosis.straggler.thresholds import DEFAULT
from support.diagnosis.operations import SmallJob, as_table


def path_of(table: OperationTable, step: int) -> tuple[Case, list[Stretch]]:
    case = Case(table, DEFAULT)
    times = timeline(case.replay, case.seconds)
    return case, critical_path(case.replay, times, np.flatnonzero(case.table.step == step))


def names(case: Case, path: list[Stretch]) -> list[tuple[int, str]]:
    table = case.table
    return [(int(table.rank[each.row]), table.operations[table.operation[each.row]]) for each in path]


def test_last_arriver() -> None:
    """A collective hangs on its last member: the path goes from what comes behind it to that rank."""
    rows = []
    for step in range(6):
        begin = 10.0 * step
        for rank, seconds in ((0, 1.0), (1, 3.0), (2, 2.0)):
            place = (0, rank, 0)
            compute = (step, rank, "forward", Kind.COMPUTE, begin, seconds, *place, "", np.nan)
            wait = (step, rank, "all_reduce", Kind.COMMUNICATION, begin + seconds, 4.0 - seconds)
            rows += [compute, (*wait, *place, "dp", np.nan)]
            after = 1.5 if rank == 2 else 0.5
            rows.append((step, rank, "optimizer", Kind.COMPUTE, begin + 4.0, after, *place, "", np.nan))
    case, path = path_of(as_table(rows), 3)
    assert [each for each in names(case, path) if each[1] != "all_reduce"] == [
        (1, "forward"),
        (2, "optimizer"),
    ]
    assert [round(each.ends - each.begins, 6) for each in path] == [3.0, 1.0, 1.5]


def test_whole_step() -> None:
    """The stretches follow one another without a gap, from 0 to the duration of the step."""
    case, path = path_of(SmallJob(dp=3, pp=3, steps=6).table(), 4)
    assert path[0].since == 0.0
    assert path[-1].ends == pytest.approx(case.step_seconds[4])
    for one, following in pairwise(path):
        assert following.since == one.ends
        assert following.begins >= following.since


def test_slow_rank() -> None:
    """Who sets the pace holds most of the path, through sends and receives too."""
    case, path = path_of(SmallJob(dp=4, pp=2, steps=8).slow_rank(5, 1.6).table(), 6)
    seconds = sum(
        each.ends - each.begins for each, (rank, _) in zip(path, names(case, path), strict=True) if rank == 5
    )
    assert seconds > 0.7 * case.step_seconds[6]
    assert len({rank for rank, _ in names(case, path)}) > 1
