"""Which way a message goes: activations to the next stage, gradients back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.arrays import Ints

_UNKNOWN, _FORWARD, _BACKWARD = 0, 1, -1


def directions(
    table: OperationTable, order: Ints, sends: NDArray[np.bool_], receives: NDArray[np.bool_]
) -> NDArray[np.int8]:
    """By row: 1 forward, -1 backward, 0 where nothing tells; `order` sorts by step, rank and start.

    A message says it by its name, or else by its neighbour: what is sent was computed just before, and what
    is received is computed with next.
    """
    by_name = np.array([_of_name(name) for name in table.operations], dtype=np.int8)
    way = by_name[table.operation]
    asks = (sends | receives) & (way == _UNKNOWN)
    if not asks.any():
        return way
    tells = ((table.kind == Kind.COMPUTE) & (way != _UNKNOWN))[order]
    count = len(order)
    position = np.arange(count)
    before = np.maximum.accumulate(np.where(tells, position, -1))
    behind = np.minimum.accumulate(np.where(tells, position, count)[::-1])[::-1]
    neighbour = np.where(sends[order], before, behind)
    there = np.clip(neighbour, 0, count - 1)
    same = (neighbour == there) & (table.step[order][there] == table.step[order])
    same &= table.rank[order][there] == table.rank[order]
    of_neighbour = np.zeros(count, dtype=np.int8)
    of_neighbour[order] = np.where(same, way[order][there], _UNKNOWN)
    return np.where(asks, of_neighbour, way)


def _of_name(name: str) -> int:
    forward, backward = is_forward(name), is_backward(name)
    return _UNKNOWN if forward == backward else _FORWARD if forward else _BACKWARD


def is_forward(name: str) -> bool:
    """Whether an operation is called after the forward pass."""
    return "forward" in name.lower() or "fwd" in name.lower()


def is_backward(name: str) -> bool:
    """Whether an operation is called after the backward pass."""
    return "backward" in name.lower() or "bwd" in name.lower()
