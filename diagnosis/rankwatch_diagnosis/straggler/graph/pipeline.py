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
