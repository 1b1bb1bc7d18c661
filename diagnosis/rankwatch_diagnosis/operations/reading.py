"""Reads a file of operations (CSV, JSONL or Parquet) into the table that the diagnosis takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.operations.blocks import COLUMNS, OPTIONAL, blocks_of
from rankwatch_diagnosis.operations.table import BROKEN, MOST_ROWS, Kind, OperationTable, clean

_MOST_NAMES = 100_000
"""Distinct operations or groups; more means that a column holds something else."""
_UNKNOWN_KIND = -1
_LARGEST = float(np.iinfo(np.int32).max)
_WHOLE_NUMBERS: Mapping[str, type[np.signedinteger]] = MappingProxyType(
    {
        "step": np.int64,
        "rank": np.int64,
        "stage": np.int32,
        "replica": np.int32,
        "microbatch": np.int32,
    }
)
"""Columns of whole numbers -> their type in the table."""


class Reading(NamedTuple):
    """A table, and the rows of the file that are not in it."""

    table: OperationTable
    skipped: Mapping[str, int]
    """Reason -> rows left out."""


def read_operations(path: Path, *, most_rows: int = MOST_ROWS) -> Reading:
    """Read CSV (also .gz), JSONL or Parquet; rows that cannot be used are skipped and counted.

    Raises UserError for a file that cannot be read, lacks a column, holds no usable row or too many rows.
    """
    columns = _Columns()
    for block in blocks_of(path, columns.add_broken_row):
        columns.add(block)
        if columns.rows > most_rows:
            raise UserError(
                f"{path} holds more than {most_rows:,} operations; cut it down to fewer steps or ranks"
            )
    if columns.rows == 0:
        broken = f": {columns.broken} {BROKEN}" if columns.broken else ""
        raise UserError(f"{path} holds no operations{broken}")
    table, skipped = clean(columns.table(), incomplete=columns.incomplete, broken=columns.broken)
    if len(table) == 0:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
        raise UserError(f"{path} holds no usable operation: {reasons}")
    return Reading(table, skipped)


class _Columns:
    """Columns of the blocks so far, with one numbering of names for all of them."""

    def __init__(self) -> None:
        self.rows = 0
        self.incomplete = 0
        self.broken = 0
        self._parts: dict[str, list[NDArray[np.generic]]] = {name: [] for name in COLUMNS}
        self._names: dict[str, dict[str, int]] = {"operation": {}, "kind": {}, "group": {"": 0}}

    def add(self, block: pa.RecordBatch) -> None:
        """Add the complete rows; raises UserError where a column of names holds something else."""
        self.rows += block.num_rows
        complete = np.ones(block.num_rows, dtype=np.bool_)
        found = {name: self._column(block, name) for name in COLUMNS}
        for name in ("operation", "kind"):
            complete &= block.column(name).is_valid().to_numpy(zero_copy_only=False)
        for name in _WHOLE_NUMBERS:
            # False for NaN and for what 32 bits of stage, replica and microbatch cannot hold.
            complete &= (np.floor(found[name]) == found[name]) & (np.abs(found[name]) <= _LARGEST)
        self.incomplete += int(block.num_rows - np.count_nonzero(complete))
        for name, values in found.items():
            kept = values[complete]
            self._parts[name].append(kept.astype(_WHOLE_NUMBERS[name]) if name in _WHOLE_NUMBERS else kept)

    def add_broken_row(self) -> None:
        """Count a line that cannot be taken apart."""
        self.broken += 1

    def _column(self, block: pa.RecordBatch, name: str) -> NDArray[np.generic]:
        present = name in block.schema.names
        if name in self._names:
            if not present:
                return np.zeros(block.num_rows, dtype=np.int32)
            return self._numbers(block.column(name), name)
        missing = 0.0 if name in _WHOLE_NUMBERS and name in OPTIONAL else np.nan
        if not present:
            return np.full(block.num_rows, missing)
        column = block.column(name).fill_null(missing)
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)

    def _numbers(self, column: pa.DictionaryArray, name: str) -> NDArray[np.int32]:
        names = self._names[name]
        own = [each.decode("utf-8", "replace") for each in column.dictionary.to_pylist()] or [""]
        numbers = np.array([names.setdefault(each, len(names)) for each in own], dtype=np.int32)
        if len(names) > _MOST_NAMES:
            raise UserError(f"column {name} holds more than {_MOST_NAMES:,} different names")
        indices = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return np.where(indices >= 0, numbers[np.maximum(indices, 0)], 0).astype(np.int32)

    def table(self) -> OperationTable:
        """Join all blocks into one table, in which an unknown kind is -1."""
        kinds = {kind.name.lower(): int(kind) for kind in Kind}
        numbers = [kinds.get(name.strip().lower(), _UNKNOWN_KIND) for name in self._names["kind"]] or [-1]
        of: dict[str, Any] = {name: np.concatenate(self._parts.pop(name)) for name in COLUMNS}
        of["kind"] = np.array(numbers, dtype=np.int8)[of["kind"]]
        return OperationTable(
            **of, operations=tuple(self._names["operation"]), groups=tuple(self._names["group"])
        )
