"""What each rank did in a step, in order: the rows of a table as nodes of a program.

Rows of communication with one start and one duration are one batch, and so one node. Rows of kind `other`
that take no time mark a moment and are no nodes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.table import Kind, OperationTable

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Node(NamedTuple):
    """One operation of a rank, or a batch of them."""

    rank: int
    names: tuple[str, ...]
    kind: Kind
    microbatch: int
    group: int
    before: int
    """The node before it on the same rank; -1 for the first one."""


class Mark(NamedTuple):
    """A row without duration: its moment is that of the end of a computation, give or take some fuzz."""

    rows: Integers
    """(step,)"""
    node: int
    after_seconds: Floats
    """(step,)"""


@dataclass(frozen=True, kw_only=True)
class Program:
    """Steps in which every rank did the same operations in the same order."""

    steps: Integers
    nodes: tuple[Node, ...]
    """Rank after rank, each in order of time."""
    rows: tuple[Integers, ...]
    """By node: indices into the table, of shape (row of the batch, step)."""
    start: Floats
    """(node, step), as recorded."""
    end: Floats
    marks: tuple[Mark, ...]
    stage_of: dict[int, int]
    replica_of: dict[int, int]


def programs_of(table: OperationTable) -> list[Program]:
    """One program for each distinct order of operations; most tables have one."""
    point = (table.kind == Kind.OTHER) & (table.duration_seconds == 0.0)
    order = np.lexsort((table.operation, table.duration_seconds, table.start_seconds, table.rank, table.step))
    rows, marks = order[~point[order]], order[point[order]]
    steps, first = np.unique(table.step[rows], return_index=True)
    same: dict[bytes, list[int]] = defaultdict(list)
    parts = np.split(rows, first[1:])
    for index, part in enumerate(parts):
        same[_signature(table, part)].append(index)
    of_step = {int(step): marks[table.step[marks] == step] for step in steps}
    return [
        _program(table, np.stack([parts[each] for each in chosen]), [of_step[int(steps[i])] for i in chosen])
        for chosen in same.values()
    ]


def _signature(table: OperationTable, rows: Integers) -> bytes:
    batched = _continues_batch(table, rows)
    columns = (table.rank, table.operation, table.microbatch, table.group)
    return b"".join([batched.tobytes(), *(column[rows].tobytes() for column in columns)])


def _continues_batch(table: OperationTable, rows: Integers) -> NDArray[np.bool_]:
    """True for a row that shares rank, start and duration with the one before it, both communication."""
    talks = table.kind[rows] == Kind.COMMUNICATION
    again = np.zeros(len(rows), dtype=np.bool_)
    again[1:] = talks[1:] & talks[:-1] & (table.duration_seconds[rows[1:]] > 0.0)
    for column in (table.rank, table.start_seconds, table.duration_seconds):
        again[1:] &= column[rows[1:]] == column[rows[:-1]]
    return again


def _program(table: OperationTable, rows: Integers, marks: list[Integers]) -> Program:
    """`rows` is (step, row)."""
    first = rows[0]
    begins = np.flatnonzero(~_continues_batch(table, first))
    batches = np.split(np.arange(len(first)), begins[1:])
    nodes: list[Node] = []
    for batch in batches:
        row = first[batch[0]]
        rank = int(table.rank[row])
        follows = bool(nodes) and nodes[-1].rank == rank
        nodes.append(
            Node(
                rank=rank,
                names=tuple(table.operations[table.operation[first[each]]] for each in batch),
                kind=Kind(int(table.kind[row])),
                microbatch=int(table.microbatch[row]),
                group=int(table.group[row]),
                before=len(nodes) - 1 if follows else -1,
            )
        )
    leads = rows[:, begins].T
    start = table.start_seconds[leads]
    end = start + table.duration_seconds[leads]
    return Program(
        steps=table.step[rows[:, 0]],
        nodes=tuple(nodes),
        rows=tuple(rows[:, batch].T for batch in batches),
        start=start,
        end=end,
        marks=tuple(_marks(table, nodes, end, marks)),
        stage_of=_constant(table, table.stage),
        replica_of=_constant(table, table.replica),
    )


def _constant(table: OperationTable, column: NDArray[np.int32]) -> dict[int, int]:
    ranks, first = np.unique(table.rank, return_index=True)
    return {int(rank): int(column[row]) for rank, row in zip(ranks, first, strict=True)}


def _marks(table: OperationTable, nodes: list[Node], end: Floats, marks: list[Integers]) -> list[Mark]:
    """Each is tied to the computation of its rank whose end is nearest in the first of the steps."""
    found = []
    counts = {len(each) for each in marks}
    if counts == {0}:
        return []
    if len(counts) > 1:
        raise ValueError("rows without duration differ from step to step")
    by_rank = np.stack([each[np.argsort(table.rank[each], kind="stable")] for each in marks])
    for rows in by_rank.T:
        rank = int(table.rank[rows[0]])
        mine = [index for index, node in enumerate(nodes) if node.rank == rank and node.kind is Kind.COMPUTE]
        moment = table.start_seconds[rows]
        node = mine[int(np.argmin(np.abs(end[mine, 0] - moment[0])))]
        found.append(Mark(rows, node, moment - end[node]))
    return found
