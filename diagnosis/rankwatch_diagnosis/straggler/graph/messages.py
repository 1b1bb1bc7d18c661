"""Messages between pipeline stages: which send each receive waits for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.arrays import Ints, codes, combine
from rankwatch_diagnosis.straggler.graph.directions import directions, is_backward, is_forward

NONE = -1
"""Stands for no row."""


def point_to_point(table: OperationTable) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Rows that send, and rows that receive, by the names of their operations."""
    names = [name.lower() for name in table.operations]
    receives = np.array(["recv" in name or "receive" in name for name in names], dtype=np.bool_)
    sends = np.array(["send" in name for name in names], dtype=np.bool_) & ~receives
    communication = table.kind == Kind.COMMUNICATION
    return communication & sends[table.operation], communication & receives[table.operation]


def message_waits(table: OperationTable, order: Ints) -> Ints:
    """By row the row of another rank whose end it waits for, or -1; `order` sorts by step, rank and start."""
    sends, receives = point_to_point(table)
    waits_for = np.full(len(table), NONE, dtype=np.int64)
    shard = _shards(table)
    if sends.any() or receives.any():
        _match_messages(table, order, sends, receives, shard, waits_for)
    if not receives.any() and len(np.unique(table.stage)) > 1:
        _follow_the_pipeline(table, shard, waits_for)
    return waits_for


def occurrence(key: Ints, order: Ints) -> Ints:
    """How many rows with the same key come before each row, in the given order."""
    sequence = order[np.argsort(key[order], kind="stable")]
    ordered = key[sequence]
    if len(ordered) == 0:
        return np.empty(0, dtype=np.int64)
    begins = np.r_[True, ordered[1:] != ordered[:-1]]
    first = np.maximum.accumulate(np.where(begins, np.arange(len(ordered)), 0))
    number = np.empty(len(key), dtype=np.int64)
    number[sequence] = np.arange(len(ordered)) - first
    return number


def _shards(table: OperationTable) -> Ints:
    """Position of each row's rank among the ranks of its replica and stage."""
    replicas, replica = codes(table.replica)
    stages, stage = codes(table.stage)
    ranks, rank = codes(table.rank)
    distinct, place = codes(combine((replica, len(replicas)), (stage, len(stages)), (rank, len(ranks))))
    home = distinct // len(ranks)
    shards: Ints = (np.arange(len(distinct)) - np.searchsorted(home, home))[place]
    return shards


def _match_messages(
    table: OperationTable,
    order: Ints,
    sends: NDArray[np.bool_],
    receives: NDArray[np.bool_],
    shard: Ints,
    waits_for: Ints,
) -> None:
    forward = _goes_forward(table, order, sends, receives)
    rows = np.flatnonzero(sends | receives)
    ahead = np.where(forward[rows], 1, -1)
    # A message is named by where it arrives.
    arrives = table.stage[rows] + np.where(sends[rows], ahead, 0)
    key = _cell(table, rows, shard, arrives, forward[rows].astype(np.int64))
    number = occurrence(key * 2 + sends[rows], np.argsort(_rank_of(order, rows), kind="stable"))
    _, key = codes(key * (int(number.max()) + 1) + number)
    _link(rows, key, sends[rows], receives[rows], waits_for)


def _goes_forward(
    table: OperationTable, order: Ints, sends: NDArray[np.bool_], receives: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Whether a message goes to the next stage; where nothing tells, forward comes first."""
    way = directions(table, order, sends, receives)
    rows = np.flatnonzero(sends | receives)
    ranks, rank = codes(table.rank[rows])
    steps, step = codes(table.step[rows])
    batches, batch = codes(table.microbatch[rows])
    stages, stage = codes(table.stage[rows])
    key = combine(
        (step, len(steps)),
        (rank, len(ranks)),
        (stage, len(stages)),
        (batch, len(batches)),
        (sends[rows] * 1, 2),
    )
    second = np.zeros(len(table), dtype=np.bool_)
    second[rows] = occurrence(key, np.argsort(_rank_of(order, rows), kind="stable")) > 0
    low, high = table.stage.min(), table.stage.max()
    # The last stage sends only gradients, and the first one receives only gradients.
    only_back = (sends & (table.stage == high)) | (receives & (table.stage == low))
    forward: NDArray[np.bool_] = np.where(way != 0, way > 0, ~(second | only_back)).astype(np.bool_)
    return forward


def _follow_the_pipeline(table: OperationTable, shard: Ints, waits_for: Ints) -> None:
    """Without rows of sends: forward waits for the stage before, backward for the stage behind."""
    for test, ahead in ((is_forward, 1), (is_backward, -1)):
        of_pass = np.array([test(name) for name in table.operations], dtype=np.bool_)[table.operation]
        rows = np.flatnonzero((table.kind == Kind.COMPUTE) & of_pass)
        if rows.size == 0:
            continue
        here = _cell(table, rows, shard, table.stage[rows], np.zeros(len(rows), dtype=np.int64))
        there = _cell(table, rows, shard, table.stage[rows] + ahead, np.zeros(len(rows), dtype=np.int64))
        both = np.r_[there, here]
        _, key = codes(both)
        receives = np.r_[np.zeros(len(rows), dtype=np.bool_), np.ones(len(rows), dtype=np.bool_)]
        _link(np.r_[rows, rows], key, ~receives, receives, waits_for)


def _cell(table: OperationTable, rows: Ints, shard: Ints, stage: NDArray[np.integer], way: Ints) -> Ints:
    """One number for (step, replica, shard, microbatch, stage, way)."""
    steps, step = codes(table.step[rows])
    replicas, replica = codes(table.replica[rows])
    batches, batch = codes(table.microbatch[rows])
    shards = int(shard.max()) + 1
    low = int(table.stage.min()) - 1
    stages = int(table.stage.max()) - low + 2
    return combine(
        (step, len(steps)),
        (replica, len(replicas)),
        (shard[rows], shards),
        (batch, len(batches)),
        (stage.astype(np.int64) - low, stages),
        (way, 2),
    )


def _link(rows: Ints, key: Ints, gives: NDArray[np.bool_], waits: NDArray[np.bool_], waits_for: Ints) -> None:
    giver = np.full(int(key.max()) + 1, NONE, dtype=np.int64)
    giver[key[gives]] = rows[gives]
    waits_for[rows[waits]] = giver[key[waits]]


def _rank_of(order: Ints, rows: Ints) -> Ints:
    """Position of the rows in the order."""
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    return position[rows]
