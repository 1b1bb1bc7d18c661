"""The rank that each step waits for: whose own work holds most of the step's critical path."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.case import Case
from rankwatch_diagnosis.straggler.graph.critical_path import critical_path, timeline
from rankwatch_diagnosis.straggler.graph.pipeline import with_stages
from rankwatch_diagnosis.straggler.thresholds import DEFAULT


class Critical(NamedTuple):
    """What holds most of a step's critical path."""

    rank: int
    operation: str
    """Of the rank's own work on the path, the one that takes longest."""
    share: float
    """Part of the path that is this rank's own work."""


def critical_ranks(table: OperationTable) -> dict[int, Critical]:
    """Step -> its critical rank. A single rank waits for nobody, and neither does a step without work."""
    if len(np.unique(table.rank)) < 2:
        return {}
    case = Case(with_stages(table), DEFAULT)
    times = timeline(case.replay, case.seconds)
    order = np.argsort(case.step, kind="stable")
    rows_of_steps = np.split(order, np.flatnonzero(np.diff(case.step[order])) + 1)
    found: dict[int, Critical] = {}
    for rows in rows_of_steps:
        own: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        whole = 0.0
        for each in critical_path(case.replay, times, np.sort(rows)):
            whole += each.ends - each.since
            if case.table.kind[each.row] != Kind.COMMUNICATION:
                operation = case.table.operations[int(case.table.operation[each.row])]
                own[int(case.table.rank[each.row])][operation] += each.ends - each.begins
        if own and whole > 0.0:
            rank = max(own, key=lambda each: sum(own[each].values()))
            operation = max(own[rank], key=own[rank].__getitem__)
            share = min(1.0, sum(own[rank].values()) / whole)
            found[int(case.table.step[rows[0]])] = Critical(rank, operation, share)
    return found
