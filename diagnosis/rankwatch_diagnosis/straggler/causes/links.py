"""Transfers by what carries them: a collective's group, or the rank that sends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.arrays import Floats, Ints, codes, combine
from rankwatch_diagnosis.straggler.finding import Case
from rankwatch_diagnosis.straggler.graph.messages import point_to_point


@dataclass(frozen=True, kw_only=True)
class Links:
    """One column for each pair of operation and group, or operation and sending rank."""

    seconds: Floats
    """(step, link): mean transfer, without waits; NaN where a step has none."""
    likeness: Ints
    """By link: links of one number run one operation, over as many ranks, as often in a step."""
    names: tuple[str, ...]
    rows: Ints
    """Rows of the table that are transfers."""
    link: Ints
    """By those rows."""


def measure_links(case: Case) -> Links | None:
    """All transfers of a table; None where it has none."""
    table = case.table
    sends, receives = point_to_point(table)
    rows = np.flatnonzero((table.kind == Kind.COMMUNICATION) & ~receives)
    if rows.size == 0:
        return None
    # A send belongs to its rank; a collective to its group, or to its stage where groups are not told.
    named = np.array([bool(name) for name in table.groups], dtype=np.bool_)[table.group[rows]]
    groups, stages = len(table.groups), int(table.stage.max()) + 1
    place = np.where(named, table.group[rows], groups + table.stage[rows]).astype(np.int64)
    place = np.where(sends[rows], groups + stages + case.rank[rows], place)
    operations = len(table.operations)
    keys, link = codes(
        combine((place, groups + stages + len(case.ranks)), (_operation(case, rows), operations))
    )
    size = len(case.steps) * len(keys)
    cell = case.step[rows] * len(keys) + link
    count = np.bincount(cell, minlength=size)
    total = np.bincount(cell, weights=case.seconds[rows], minlength=size)
    mean = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
    per_step = np.rint(np.bincount(link, minlength=len(keys)) / len(case.steps)).astype(np.int64)
    members = np.bincount(np.unique(link * len(case.ranks) + case.rank[rows]) // len(case.ranks))
    alike = combine(
        (keys % operations, operations), (members, len(case.ranks) + 1), (per_step, len(rows) + 1)
    )
    return Links(
        seconds=mean.reshape(len(case.steps), len(keys)),
        likeness=codes(alike)[1],
        names=tuple(_name(case, int(key), groups, stages) for key in keys.tolist()),
        rows=rows,
        link=link,
    )


def _operation(case: Case, rows: Ints) -> Ints:
    return case.table.operation[rows].astype(np.int64)


def _name(case: Case, key: int, groups: int, stages: int) -> str:
    place, operation = divmod(key, len(case.table.operations))
    name = case.table.operations[operation]
    if place >= groups + stages:
        return f"{name} of rank {int(case.ranks[place - groups - stages])}"
    if place >= groups:
        return f"{name} of stage {place - groups}"
    return f"{name} in {case.table.groups[place]}"
