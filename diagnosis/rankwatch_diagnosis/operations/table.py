"""The table of operations: one row for each operation of each rank in each step, held by column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.groups import Bools, Floats, Groups, Ints, factorize

MOST_ROWS = 5_000_000
"""The diagnosis takes some 350 bytes for each: 2 GiB at most."""
NO_PEER = -1
"""In the column `peer`."""
NO_ROW = -1
"""In an array of rows of a table."""
_LONGEST_SECONDS = 1e9
"""A mistake of the unit, or a wrecked row."""


class Kind(IntEnum):
    """What an operation is. The column `kind` holds these numbers; files hold the names in lower case."""

    COMPUTE = 0
    COMMUNICATION = 1
    DATA_LOADING = 2
    OTHER = 3


class Cells(NamedTuple):
    """Where the rows of a table stand in an array of (step, rank)."""

    step: Ints
    """By row: index into `steps`."""
    steps: Ints
    """Numbers of the steps, in order."""
    rank: Ints
    """By row: index into `ranks`."""
    ranks: Ints
    """Numbers of the ranks, in order."""
    groups: Groups
    """Cells of the flattened array."""

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of steps and ranks."""
        return len(self.steps), len(self.ranks)


@dataclass(frozen=True, kw_only=True)
class OperationTable:
    """Columns of equal length. A table may hold only some ranks of a job, and its rows are in any order."""

    step: NDArray[np.int64]
    rank: NDArray[np.int64]
    operation: NDArray[np.int32]
    """Index into `operations`."""
    kind: NDArray[np.int8]
    """Numbers of Kind."""
    start_seconds: NDArray[np.float64]
    """On a clock that all ranks share, or at least one per rank."""
    duration_seconds: NDArray[np.float64]
    """At least 0; of communication it includes the wait for peers."""
    stage: NDArray[np.int32]
    """Pipeline stage; 0 where there is one."""
    replica: NDArray[np.int32]
    """Index of the pipeline, the data-parallel coordinate: its ranks work on the same microbatches."""
    microbatch: NDArray[np.int32]
    """0 where a step is not divided."""
    group: NDArray[np.int32]
    """Process group of communication: index into `groups`."""
    work: NDArray[np.float64]
    """Units of work (tokens, sum of squared lengths); NaN where none is known."""
    operations: tuple[str, ...]
    """Names: forward, backward, all_reduce, send, ..."""
    groups: tuple[str, ...]
    """Names of process groups; "" stands for none."""
    peer: NDArray[np.int64] | None = None
    """Rank at the other end of a message, -1 where it is unknown; None where all are."""
    ahead_seconds: NDArray[np.float64] | None = None
    """Of a message: by how much it was enqueued before the wait for it began. None where `peer` is."""
    complete: bool = False
    """Whether it is known to hold all ranks of the job, so that nobody waits for another one."""
    waits_known: bool = False
    """Whether each wait for other ranks has a row, so that no other row hides one."""

    def __len__(self) -> int:
        return len(self.step)

    @property
    def end_seconds(self) -> Floats:
        """By row."""
        return self.start_seconds + self.duration_seconds

    @cached_property
    def sends(self) -> Bools:
        """By row: it sends a message, by the name of its operation."""
        return self._communicates("send") & ~self.receives

    @cached_property
    def receives(self) -> Bools:
        """By row: it receives a message, by the name of its operation."""
        return self._communicates("recv", "receive")

    def _communicates(self, *words: str) -> Bools:
        named = self.named(lambda name: any(word in name.lower() for word in words))
        found: Bools = named & (self.kind == Kind.COMMUNICATION)
        return found

    def named(self, chosen: Callable[[str], bool]) -> Bools:
        """Return by row whether the name of its operation is one of those chosen."""
        named: Bools = np.array([chosen(name) for name in self.operations], dtype=np.bool_)[self.operation]
        return named

    @cached_property
    def order(self) -> Ints:
        """Rows by step, rank and start; of rows that begin together, one without duration came first."""
        return np.lexsort((self.end_seconds, self.start_seconds, self.rank, self.step))

    @cached_property
    def cells(self) -> Cells:
        """The step and the rank of each row."""
        (step, steps), (rank, ranks) = factorize(self.step), factorize(self.rank)
        return Cells(step, steps, rank, ranks, Groups.grid((step, len(steps)), (rank, len(ranks))))

    def spans(self) -> tuple[Floats, Floats]:
        """Return (step, rank): when it began and when it ended; infinite where the rank is not there."""
        cells = self.cells.groups
        shape = self.cells.shape
        return cells.min(self.start_seconds).reshape(shape), cells.max(self.end_seconds).reshape(shape)

    def median_span_seconds(self) -> float:
        """Return the median of what a step takes on a rank; NaN for a table without rows."""
        first, last = self.spans()
        there = np.isfinite(first)
        return float(np.median((last - first)[there])) if there.any() else np.nan

    def take(self, rows: NDArray[Any]) -> OperationTable:
        """Return some rows, by a mask or by their indices."""
        columns: dict[str, Any] = {name: column[rows] for name, column in self._columns()}
        return replace(self, **columns)

    def followed_by(self, more: OperationTable) -> OperationTable:
        """Return the rows of both; the names of `more` begin with the names of this table."""
        columns: dict[str, Any] = {
            name: np.concatenate([each, getattr(more, name)]) for name, each in self._columns()
        }
        return replace(more, **columns)

    def _columns(self) -> list[tuple[str, Any]]:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return [(name, each) for name, each in values if isinstance(each, np.ndarray)]


BROKEN = "with the wrong number of columns, or no JSON object"
"""Why a line of a file is no row."""


def clean(table: OperationTable, *, incomplete: int, broken: int) -> tuple[OperationTable, dict[str, int]]:
    """Return the usable rows, and by reason the number of rows left out.

    `incomplete` and `broken` rows were left out when the file was read.
    """
    skipped = {
        BROKEN: broken,
        "without operation or kind, or without whole numbers for step, rank, stage, replica or microbatch": (
            incomplete
        ),
    }
    bad = ~np.isfinite(table.duration_seconds) | ~np.isfinite(table.start_seconds)
    longer = ~bad & (table.duration_seconds > _LONGEST_SECONDS)
    for reason, rows in (
        ("with a kind other than compute, communication, data_loading, other", table.kind < 0),
        ("with a start or duration that is no number", bad),
        ("with a negative duration", ~bad & (table.duration_seconds < 0.0)),
        ("with a duration of more than 30 years", longer),
        ("with a negative step or rank", (table.step < 0) | (table.rank < 0)),
    ):
        skipped[reason] = int(np.count_nonzero(rows))
    usable = ~bad & (table.kind >= 0) & (table.step >= 0) & (table.rank >= 0)
    usable &= np.where(bad, False, table.duration_seconds >= 0.0) & ~longer
    table = _kept(table, usable)
    order = np.lexsort((table.start_seconds, table.operation, table.rank, table.step))
    same = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
    for column in (table.step, table.rank, table.operation, table.start_seconds):
        same &= column[order[1:]] == column[order[:-1]]
    repeated = np.zeros(len(order), dtype=np.bool_)
    repeated[order[1:][same]] = True
    skipped["that repeat step, rank, operation and start"] = int(np.count_nonzero(repeated))
    table = _kept(table, ~repeated)
    # Rows of a rank outside the replica that it was first seen in: two processes claimed the same rank.
    _, first, inverse = np.unique(table.rank, return_index=True, return_inverse=True)
    strays: NDArray[np.bool_] = table.replica != table.replica[first][inverse]
    skipped["that put a rank into a second replica"] = int(np.count_nonzero(strays))
    return _kept(table, ~strays), {reason: count for reason, count in skipped.items() if count}


def _kept(table: OperationTable, rows: NDArray[np.bool_]) -> OperationTable:
    return table if rows.all() else table.take(rows)  # a table is large, and mostly nothing is wrong with it
