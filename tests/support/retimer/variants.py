"""The same table as other recorders would have written it: fewer columns, other clocks, other ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from rankwatch_diagnosis.operations.table import OperationTable


def without_groups(table: OperationTable) -> OperationTable:
    return replace(table, group=np.zeros_like(table.group), groups=("",))


def without_sends(table: OperationTable) -> OperationTable:
    return table.take(~_named(table, "send"))


def without_receives(table: OperationTable) -> OperationTable:
    return table.take(~_named(table, "recv"))


def with_own_clocks(table: OperationTable) -> OperationTable:
    """Clocks of the ranks differ by up to 5 s, and by up to 50 millionths of the time that passes."""
    random = np.random.default_rng(5)
    ranks, index = np.unique(table.rank, return_inverse=True)
    offset, drift = random.uniform(-5.0, 5.0, len(ranks)), random.uniform(-5e-5, 5e-5, len(ranks))
    # The steps of the recordings begin at 0 each; between them lies the time that was not recorded.
    _, number = np.unique(table.step, return_inverse=True)
    passed = 100.0 * number + table.start_seconds
    return replace(table, start_seconds=table.start_seconds + offset[index] + drift[index] * passed)


def shuffled(table: OperationTable) -> OperationTable:
    return table.take(np.random.default_rng(6).permutation(len(table)))


def one_of_each_tensor_group(table: OperationTable) -> OperationTable:
    """Rank numbers with gaps of eight: one rank of each tensor-parallel group is recorded."""
    return replace(table, rank=8 * np.unique(table.rank, return_inverse=True)[1])


def numbered_without_gaps(table: OperationTable) -> OperationTable:
    return replace(table, rank=np.unique(table.rank, return_inverse=True)[1].astype(np.int64))


def last_steps(count: int) -> Callable[[OperationTable], OperationTable]:
    """Only the last steps of the table."""
    return lambda table: table.take(table.step >= np.unique(table.step)[-count])


def _named(table: OperationTable, part: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    chosen = [index for index, name in enumerate(table.operations) if part in name]
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.isin(table.operation, chosen)
    return found


VARIANTS: Mapping[str, Callable[[OperationTable], OperationTable]] = MappingProxyType(
    {
        "": lambda table: table,
        "no groups": without_groups,
        "no sends": without_sends,
        "no receives": without_receives,
        "own clocks": with_own_clocks,
        "shuffled": shuffled,
        "gaps": one_of_each_tensor_group,
        "no gaps": numbered_without_gaps,
        **{f"{count} steps": last_steps(count) for count in (1, 2, 4)},
    }
)


def last_of(variant: str) -> int:
    """How many steps a variant leaves in the table."""
    count, _, unit = variant.partition(" ")
    return int(count) if unit == "steps" else _ALL


_ALL = 1 << 30
