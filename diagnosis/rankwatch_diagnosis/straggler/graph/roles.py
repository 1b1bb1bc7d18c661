"""The stages of a pipeline where the table does not tell them: by what each rank does, and in which order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.arrays import Ints, codes, combine
from rankwatch_diagnosis.straggler.graph.messages import NONE, occurrence, point_to_point


def with_stages(table: OperationTable) -> OperationTable:
    """The table with a stage for each rank, where it tells one stage and its ranks send to each other.

    Ranks of one stage run the same operations in the same order, and meet in collectives that not all ranks
    attend. Stages are numbered by their lowest rank, which is the order of the pipeline in common layouts.
    """
    sends, receives = point_to_point(table)
    if len(table) == 0 or table.stage.min() != table.stage.max() or not (sends.any() or receives.any()):
        return table
    ranks, rank = codes(table.rank)
    same_program = _programs(table, sends, receives, rank, len(ranks))
    together = _together(table, sends | receives, rank, len(ranks))
    role = codes(combine((same_program, len(ranks)), (together, len(ranks))))[1]
    first = np.unique(role, return_index=True)[1]
    stage = _of_equal_size(np.argsort(np.argsort(first))[role])
    return replace(table, stage=stage[rank].astype(np.int32))


def _of_equal_size(role: Ints) -> Ints:
    """Inner stages may run one program. Stages hold equally many ranks, in the same pattern of numbers."""
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
    distinct, first, stage = np.unique(role * len(role) + part, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first[: len(distinct)]))[stage]


def _programs(
    table: OperationTable, sends: NDArray[np.bool_], receives: NDArray[np.bool_], rank: Ints, ranks: int
) -> Ints:
    """By rank: a number for the order of its compute and receives, and its sends, in most of its steps.

    A send goes on beside what follows it, so its place among the others is left to chance.
    """
    rows = np.flatnonzero(sends | receives | (table.kind == Kind.COMPUTE))
    steps, step = codes(table.step[rows])
    of_step = combine((rank[rows], ranks), (step, len(steps)))
    order = np.lexsort((table.start_seconds[rows], of_step))
    cells, cell = codes(of_step)
    position = occurrence(np.where(sends[rows], len(cells), cell), order)
    position[sends[rows]] = 0
    word = combine((position, int(position.max()) + 1), (table.operation[rows].astype(np.int64), 2**20))
    text = np.zeros(len(cells), dtype=np.uint64)
    np.add.at(text, cell, _mixed(word))
    texts, spelled = codes((text >> np.uint64(2)).astype(np.int64))
    often, number = codes(combine((cells // len(steps), ranks), (spelled, len(texts))))
    count = np.bincount(number)
    program = np.full(ranks, NONE, dtype=np.int64)
    # The last one written is the most frequent one.
    by_count = np.argsort(count, kind="stable")
    program[often[by_count] // len(texts)] = often[by_count] % len(texts)
    return codes(program)[1]


def _mixed(word: Ints) -> NDArray[np.uint64]:
    """Numbers whose sum tells which words there are (the finalizer of splitmix64)."""
    mixed = word.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _together(table: OperationTable, messages: NDArray[np.bool_], rank: Ints, ranks: int) -> Ints:
    """By rank: the lowest rank that it meets, at first or second hand, in collectives of some ranks."""
    rows = np.flatnonzero((table.kind == Kind.COMMUNICATION) & ~messages)
    pairs = np.unique(table.group[rows].astype(np.int64) * ranks + rank[rows])
    group, member = pairs // ranks, pairs % ranks
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
