"""The table of operations, by column: one row for each operation of each rank in each step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Kind(IntEnum):
    """What an operation is; the column `kind` holds these numbers, files the names in lower case."""

    COMPUTE = 0
    COMMUNICATION = 1
    DATA = 2
    OTHER = 3


@dataclass(frozen=True, kw_only=True)
class OperationTable:
    """Columns of equal length n; a table may hold only some of a job's ranks, and any order of rows."""

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

    def __len__(self) -> int:
        return len(self.step)
