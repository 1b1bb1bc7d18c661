"""The order in which a graph of rows can be replayed: every row behind all that it waits for."""

from __future__ import annotations

import numpy as np

from rankwatch_diagnosis.straggler.arrays import Ints
from rankwatch_diagnosis.straggler.graph.meetings import Meetings


def levels(before: Ints, meetings: Meetings) -> tuple[list[Ints], bool]:
    """Rows by level, in each the members of a collective side by side.

    Kahn's algorithm over whole frontiers. Rows in a circle (dependencies guessed wrongly, as clocks can make
    them) come last, in one level, and wait for nothing that comes later. Second: whether there are such rows.
    """
    node, count = _nodes(meetings)
    source, target = _edges(before, meetings, node)
    missing = np.bincount(target, minlength=count)
    by_source = np.argsort(source, kind="stable")
    targets = target[by_source]
    ends = np.cumsum(np.bincount(source, minlength=count))
    starts = np.r_[0, ends[:-1]]
    level = np.full(count, -1, dtype=np.int64)
    frontier = np.flatnonzero(missing == 0)
    number = 0
    while frontier.size:
        level[frontier] = number
        number += 1
        reached = targets[_ranges(starts[frontier], ends[frontier])]
        np.subtract.at(missing, reached, 1)
        frontier = np.unique(reached[missing[reached] == 0])
    circles = bool((level < 0).any())
    level[level < 0] = number
    of_row = level[node]
    order = np.lexsort((node, of_row))
    parts = np.split(order, np.flatnonzero(np.diff(of_row[order])) + 1)
    return [part for part in parts if part.size], circles


def _nodes(meetings: Meetings) -> tuple[Ints, int]:
    """A collective is one node, every other row is one by itself."""
    alone = meetings.collective < 0
    node = meetings.collective.copy()
    node[alone] = meetings.collectives + np.arange(np.count_nonzero(alone))
    return node, meetings.collectives + int(np.count_nonzero(alone))


def _edges(before: Ints, meetings: Meetings, node: Ints) -> tuple[Ints, Ints]:
    parts = [
        (each[rows], rows) for each in (before, meetings.waits_for) for rows in (np.flatnonzero(each >= 0),)
    ]
    source = np.concatenate([node[given] for given, _ in parts])
    target = np.concatenate([node[rows] for _, rows in parts])
    return source, target


def _ranges(starts: Ints, ends: Ints) -> Ints:
    """All indices of several ranges, one after the other."""
    sizes = ends - starts
    total = int(sizes.sum())
    offsets = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    indices: Ints = np.arange(total) + offsets
    return indices
