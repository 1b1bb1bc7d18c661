"""Pipelines in a table of operations: which stage a rank holds, and which send each receive waits for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.group_by import (
    Bools,
    Ints,
    cumcount,
    factorize,
    group_first,
    ngroup,
)

NONE = -1
"""Stands for no row."""
_UNKNOWN, _FORWARD, _BACKWARD = 0, 1, -1


def point_to_point(table: OperationTable) -> tuple[Bools, Bools]:
    """Rows that send, and rows that receive, by the names of their operations."""
    names = [name.lower() for name in table.operations]
    receives = np.array(["recv" in name or "receive" in name for name in names], dtype=np.bool_)
    sends = np.array(["send" in name for name in names], dtype=np.bool_) & ~receives
    communication = table.kind == Kind.COMMUNICATION
    return communication & sends[table.operation], communication & receives[table.operation]


def message_waits(table: OperationTable, order: Ints) -> Ints:
    """By row: the row of another rank that it waits for, or -1; `order` sorts by step, rank and start."""
    sends, receives = point_to_point(table)
    waits_for = np.full(len(table), NONE, dtype=np.int64)
    shard = _shards(table)
    if sends.any() or receives.any():
        _match_messages(table, order, sends, receives, shard, waits_for)
    if not receives.any() and len(np.unique(table.stage)) > 1:
        _follow_the_pipeline(table, shard, waits_for)
    return waits_for


def _match_messages(
    table: OperationTable, order: Ints, sends: Bools, receives: Bools, shard: Ints, waits_for: Ints
) -> None:
    """The n-th receive of a channel waits for the n-th send of it."""
    forward = _goes_forward(table, order, sends, receives)
    rows = np.flatnonzero(sends | receives)
    ahead = np.where(forward[rows], 1, -1)
    # A message is named by where it arrives.
    arrives = table.stage[rows] + np.where(sends[rows], ahead, 0)
    channel = ngroup(*_place(table, shard, rows), arrives, forward[rows].astype(np.int64)).number
    number = cumcount(channel * 2 + sends[rows], _in_time(order, rows))
    message = ngroup(channel, number).number
    _link(rows, message, sends[rows], receives[rows], waits_for)


def _follow_the_pipeline(table: OperationTable, shard: Ints, waits_for: Ints) -> None:
    """Without rows of sends: forward waits for the stage before, backward for the stage behind."""
    for is_pass, ahead in ((_is_forward, 1), (_is_backward, -1)):
        of_pass = np.array([is_pass(name) for name in table.operations], dtype=np.bool_)[table.operation]
        rows = np.flatnonzero((table.kind == Kind.COMPUTE) & of_pass)
        if rows.size == 0:
            continue
        twice = np.r_[rows, rows]
        receives = np.r_[np.zeros(len(rows), dtype=np.bool_), np.ones(len(rows), dtype=np.bool_)]
        arrives = table.stage[twice] + np.where(receives, 0, ahead)
        message = ngroup(*_place(table, shard, twice), arrives).number
        _link(twice, message, ~receives, receives, waits_for)


def _place(table: OperationTable, shard: Ints, rows: Ints) -> tuple[NDArray[np.integer], ...]:
    """What both ends of a message have in common: step, replica, shard and microbatch."""
    return table.step[rows], table.replica[rows], shard[rows], table.microbatch[rows]


def _shards(table: OperationTable) -> Ints:
    """By row: position of its rank among the ranks of its replica and stage."""
    home = ngroup(table.replica, table.stage).number
    member = ngroup(home, table.rank)
    return cumcount(group_first(home, member))[member.number]


def _link(rows: Ints, message: Ints, sends: Bools, receives: Bools, waits_for: Ints) -> None:
    sender = np.full(int(message.max()) + 1, NONE, dtype=np.int64)
    sender[message[sends]] = rows[sends]
    waits_for[rows[receives]] = sender[message[receives]]


def _in_time(order: Ints, rows: Ints) -> Ints:
    """Indices that put the rows into the given order of all rows."""
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    return np.argsort(position[rows], kind="stable")


def _goes_forward(table: OperationTable, order: Ints, sends: Bools, receives: Bools) -> Bools:
    """By row: the message goes to the next stage. Without a known direction, forward comes first."""
    direction = _directions(table, order, sends, receives)
    rows = np.flatnonzero(sends | receives)
    own = ngroup(table.step[rows], table.rank[rows], table.stage[rows], table.microbatch[rows]).number
    second = np.zeros(len(table), dtype=np.bool_)
    second[rows] = cumcount(own * 2 + sends[rows], _in_time(order, rows)) > 0
    low, high = table.stage.min(), table.stage.max()
    # The last stage sends only gradients, and the first one receives only gradients.
    only_back = (sends & (table.stage == high)) | (receives & (table.stage == low))
    forward: Bools = np.where(direction != _UNKNOWN, direction > 0, ~(second | only_back)).astype(np.bool_)
    return forward


def _directions(table: OperationTable, order: Ints, sends: Bools, receives: Bools) -> NDArray[np.int8]:
    """By row: 1 forward, -1 backward, 0 where it is unknown; `order` sorts by step, rank and start.

    The name of a message gives its direction, or else its neighbour does: a rank sends what it computed just
    before, and it computes next with what it receives.
    """
    by_name = np.array([_direction_of(name) for name in table.operations], dtype=np.int8)
    direction = by_name[table.operation]
    unnamed = (sends | receives) & (direction == _UNKNOWN)
    if not unnamed.any():
        return direction
    known = ((table.kind == Kind.COMPUTE) & (direction != _UNKNOWN))[order]
    count = len(order)
    position = np.arange(count)
    before = np.maximum.accumulate(np.where(known, position, -1))
    behind = np.minimum.accumulate(np.where(known, position, count)[::-1])[::-1]
    neighbour = np.where(sends[order], before, behind)
    there = np.clip(neighbour, 0, count - 1)
    same = (neighbour == there) & (table.step[order][there] == table.step[order])
    same &= table.rank[order][there] == table.rank[order]
    of_neighbour = np.zeros(count, dtype=np.int8)
    of_neighbour[order] = np.where(same, direction[order][there], _UNKNOWN)
    return np.where(unnamed, of_neighbour, direction)


def _direction_of(name: str) -> int:
    forward, backward = _is_forward(name), _is_backward(name)
    return _UNKNOWN if forward == backward else _FORWARD if forward else _BACKWARD


def _is_forward(name: str) -> bool:
    return "forward" in name.lower() or "fwd" in name.lower()


def _is_backward(name: str) -> bool:
    return "backward" in name.lower() or "bwd" in name.lower()


def with_stages(table: OperationTable) -> OperationTable:
    """The table with a stage for each rank, where it holds one stage only and its ranks send to each other.

    Ranks of one stage run the same operations in the same order and share collectives that not all ranks
    attend. Stages are numbered by their lowest rank, which is the order of the pipeline in common layouts.
    """
    sends, receives = point_to_point(table)
    if len(table) == 0 or table.stage.min() != table.stage.max() or not (sends.any() or receives.any()):
        return table
    rank, ranks = factorize(table.rank)
    same_program = _programs(table, sends, receives, rank, len(ranks))
    together = _together(table, sends | receives, rank, len(ranks))
    role = ngroup(same_program, together)
    lowest = group_first(np.arange(len(ranks)), role)
    stage = _of_equal_size(np.argsort(np.argsort(lowest))[role.number])
    return replace(table, stage=stage[rank].astype(np.int32))


def _of_equal_size(role: Ints) -> Ints:
    """Split roles that several stages share: stages hold equally many ranks, in one pattern of numbers."""
    sizes = np.bincount(role)
    smallest = int(np.argmin(sizes))
    size = int(sizes[smallest])
    members = np.flatnonzero(role == smallest)
    # How many neighbours by number share a stage: all of it, or its shards where pipelines come one by one.
    side_by_side = int(np.argmax(np.r_[np.diff(members) > 1, True])) + 1
    part = np.zeros(len(role), dtype=np.int64)
    for each in np.flatnonzero((sizes > size) & (sizes % size == 0)).tolist():
        inside = np.flatnonzero(role == each)
        part[inside] = np.arange(len(inside)) // side_by_side % (len(inside) // size)
    stage = ngroup(role, part)
    return np.argsort(np.argsort(group_first(np.arange(len(role)), stage)))[stage.number]


def _programs(table: OperationTable, sends: Bools, receives: Bools, rank: Ints, ranks: int) -> Ints:
    """By rank: a number for the order of its compute and receives, and its sends, in most of its steps.

    A send goes on beside what follows it, so its place among the others is left to chance.
    """
    rows = np.flatnonzero(sends | receives | (table.kind == Kind.COMPUTE))
    rank_step = ngroup(rank[rows], table.step[rows])
    order = np.lexsort((table.start_seconds[rows], rank_step.number))
    position = cumcount(np.where(sends[rows], rank_step.count, rank_step.number), order)
    position[sends[rows]] = 0
    word = ngroup(position, table.operation[rows]).number
    text = np.zeros(rank_step.count, dtype=np.uint64)
    np.add.at(text, rank_step.number, _mixed(word))
    spelled = factorize((text >> np.uint64(2)).astype(np.int64))[0]
    speaker = group_first(rank[rows], rank_step)
    often = ngroup(speaker, spelled)
    program = np.full(ranks, NONE, dtype=np.int64)
    # The last one written is the most frequent one.
    by_count = np.argsort(np.bincount(often.number), kind="stable")
    program[group_first(speaker, often)[by_count]] = group_first(spelled, often)[by_count]
    return factorize(program)[0]


def _mixed(word: Ints) -> NDArray[np.uint64]:
    """Hashes whose sum identifies the set of words (the finalizer of splitmix64)."""
    mixed = word.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _together(table: OperationTable, messages: Bools, rank: Ints, ranks: int) -> Ints:
    """By rank: the lowest rank that shares collectives of some ranks with it, directly or through others."""
    rows = np.flatnonzero((table.kind == Kind.COMMUNICATION) & ~messages)
    pairs = ngroup(table.group[rows], rank[rows])
    group, member = (group_first(each[rows], pairs) for each in (table.group, rank))
    sizes = np.bincount(group, minlength=len(table.groups))
    inner = (sizes[group] > 1) & (sizes[group] < ranks)
    group, member = group[inner], member[inner]
    label = np.arange(ranks)
    if group.size == 0 or len(np.unique(member)) < ranks:
        return np.zeros(ranks, dtype=np.int64)
    while True:
        lowest = np.full(len(table.groups), ranks)
        np.minimum.at(lowest, group, label[member])
        before = label.copy()
        np.minimum.at(label, member, lowest[group])
        if (label == before).all():
            return label
