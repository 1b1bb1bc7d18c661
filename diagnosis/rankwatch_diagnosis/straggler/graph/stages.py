"""The pipeline stage that each rank holds, where a table does not say it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.groups import Bools, Groups, Ints, connected, cumcount, factorize
from rankwatch_diagnosis.operations.table import NO_ROW, Kind, OperationTable


def with_stages(table: OperationTable) -> OperationTable:
    """Return the table with a stage for each rank, where it holds one stage and its ranks send to each other.

    Ranks of one stage run the same operations in the same order and share collectives that not all ranks
    attend. Stages are numbered by their lowest rank, which is the order of the pipeline in common layouts.
    """
    messages = table.sends | table.receives
    if len(table) == 0 or table.stage.min() != table.stage.max() or not messages.any():
        return table
    rank, ranks = table.cells.rank, len(table.cells.ranks)
    role = Groups.by(_programs(table, rank, ranks), _lowest_of_stage(table, messages, rank, ranks))
    lowest = role.first(np.arange(ranks))
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
    stage = Groups.by(role, part)
    return np.argsort(np.argsort(stage.first(np.arange(len(role)))))[stage.number]


def _programs(table: OperationTable, rank: Ints, ranks: int) -> Ints:
    """Return by rank a number for the order of its compute and receives, and its sends, in most of its steps.

    A send goes on beside what follows it, so its place among the others is left to chance.
    """
    sends = table.sends
    rows = np.flatnonzero(sends | table.receives | (table.kind == Kind.COMPUTE))
    rank_step = Groups.by(rank[rows], table.step[rows])
    order = np.lexsort((table.start_seconds[rows], rank_step.number))
    position = cumcount(np.where(sends[rows], rank_step.count, rank_step.number), order)
    position[sends[rows]] = 0
    word = Groups.by(position, table.operation[rows]).number
    text = np.zeros(rank_step.count, dtype=np.uint64)
    np.add.at(text, rank_step.number, _mixed(word))
    spelled = factorize((text >> np.uint64(2)).astype(np.int64))[0]
    speaker = rank_step.first(rank[rows])
    often = Groups.by(speaker, spelled)
    program = np.full(ranks, NO_ROW, dtype=np.int64)
    # The last one written is the most frequent one.
    by_count = np.argsort(np.bincount(often.number), kind="stable")
    program[often.first(speaker)[by_count]] = often.first(spelled)[by_count]
    return factorize(program)[0]


def _mixed(word: Ints) -> NDArray[np.uint64]:
    """Hash words, so that the sum identifies their set (the finalizer of splitmix64)."""
    mixed = word.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _lowest_of_stage(table: OperationTable, messages: Bools, rank: Ints, ranks: int) -> Ints:
    """Return by rank the lowest one that shares collectives of some ranks with it, maybe through others."""
    rows = np.flatnonzero((table.kind == Kind.COMMUNICATION) & ~messages)
    pairs = Groups.by(table.group[rows], rank[rows])
    group, member = (pairs.first(each[rows]) for each in (table.group, rank))
    sizes = np.bincount(group, minlength=len(table.groups))
    inner = (sizes[group] > 1) & (sizes[group] < ranks)
    group, member = group[inner], member[inner]
    if group.size == 0 or len(np.unique(member)) < ranks:
        return np.zeros(ranks, dtype=np.int64)
    return connected(ranks, member, Groups.by(group))
