"""Reads a file of operations (CSV, JSONL or Parquet) into the table that the diagnosis takes.

The file is read block by block, so that no file is loaded whole before it is known to fit.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
from numpy.typing import NDArray

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.opening import open_bytes
from rankwatch_diagnosis.operations.table import Kind, OperationTable, clean

MOST_ROWS = 5_000_000
"""The diagnosis takes some 350 bytes for each: 2 GiB at most."""
_MOST_NAMES = 100_000
"""Distinct operations or groups; more means that a column holds something else."""
_BLOCK_BYTES = 8 << 20
_MOST_BYTES = 2 << 30
"""Of text, unpacked: 400 for each of the operations that the diagnosis takes at most."""
_BATCH_ROWS = 1 << 17
_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
_UNKNOWN_KIND = -1
_LARGEST = float(np.iinfo(np.int32).max)

_NAMES = pa.dictionary(pa.int32(), pa.string())
# pandas writes a column of whole numbers with a gap as 3.0, so they are read as floats.
_WHOLE = pa.float64()
_REQUIRED: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "step": _WHOLE,
        "rank": _WHOLE,
        "operation": _NAMES,
        "kind": _NAMES,
        "start_seconds": pa.float64(),
        "duration_seconds": pa.float64(),
    }
)
_OPTIONAL: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "stage": _WHOLE,
        "replica": _WHOLE,
        "microbatch": _WHOLE,
        "group": _NAMES,
        "work": pa.float64(),
    }
)
"""Where missing: 0, no group, and work unknown."""
_COLUMNS: Mapping[str, pa.DataType] = MappingProxyType({**_REQUIRED, **_OPTIONAL})
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
    for block in _blocks(path, columns.add_broken_row):
        columns.add(block)
        if columns.rows > most_rows:
            raise UserError(
                f"{path} holds more than {most_rows:,} operations; cut it down to fewer steps or ranks"
            )
    if columns.rows == 0:
        raise UserError(f"{path} holds no operations")
    table, skipped = clean(columns.table(), incomplete=columns.incomplete, broken=columns.broken)
    if len(table) == 0:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
        raise UserError(f"{path} holds no usable operation: {reasons}")
    return Reading(table, skipped)


def _blocks(path: Path, on_broken_row: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """Blocks of rows with the known columns, in their types; raises UserError for a file that cannot be read.

    `on_broken_row` is called for each line of a CSV that has too few or too many columns.
    """
    try:
        with open_bytes(path) as file:
            opening = file.read(4)
            file.seek(0)
            if opening[:4] == _PARQUET:
                yield from _parquet(file, path)
                return
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if opening[:2] == _GZIP else file
            name = path.name.lower().removesuffix(".gz")
            if name.endswith((".jsonl", ".ndjson", ".json")):
                yield from _jsonl(stream, path)
            else:
                yield from _csv(stream, path, on_broken_row)
    except pa.ArrowException as error:
        raise UserError(f"{path}: {_first_sentence(error)}") from error
    except (OSError, EOFError) as error:  # gzip raises EOFError for a truncated file
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"could not read {path}: {reason}") from error


def _csv(file: IO[bytes], path: Path, on_broken_row: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    first = file.readline(1 << 16)
    if not first.strip():
        raise UserError(f"{path} is empty")
    header = [name.strip().strip('"') for name in first.decode(errors="replace").lstrip("\ufeff").split(",")]
    _check_names(header, path)
    options = pyarrow.csv.ConvertOptions(
        column_types=_COLUMNS,
        include_columns=[name for name in _COLUMNS if name in header],
        strings_can_be_null=True,
        null_values=["", "NA", "null", "None", "none"],
    )

    def skip(_: pyarrow.csv.InvalidRow) -> str:
        on_broken_row()
        return "skip"

    for lines in _lines(file, path):
        # One block after another in this thread: a reader that reads ahead may still run when Python ends.
        table = pyarrow.csv.read_csv(
            pa.BufferReader(lines),
            read_options=pyarrow.csv.ReadOptions(block_size=2 * _BLOCK_BYTES, column_names=header),
            parse_options=pyarrow.csv.ParseOptions(invalid_row_handler=skip),
            convert_options=options,
        )
        yield from table.to_batches()


def _jsonl(file: IO[bytes], path: Path) -> Iterator[pa.RecordBatch]:
    options = pyarrow.json.ParseOptions(
        explicit_schema=pa.schema([(name, _plain(kind)) for name, kind in _COLUMNS.items()]),
        unexpected_field_behavior="ignore",
    )
    first = True
    for lines in _lines(file, path):
        if first:
            _check_first_object(lines, path)
            first = False
        table = pyarrow.json.read_json(
            pa.BufferReader(lines),
            read_options=pyarrow.json.ReadOptions(block_size=2 * _BLOCK_BYTES),
            parse_options=options,
        )
        yield from _typed(table).to_batches()


def _lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Blocks of whole lines, empty ones left out; raises UserError where a line or the text is too long."""
    rest = b""
    total = 0
    while True:
        read = file.read(_BLOCK_BYTES)
        whole, newline, rest = (rest + read).rpartition(b"\n") if read else (rest, b"", b"")
        total += len(read)
        if len(rest) > _BLOCK_BYTES:
            raise UserError(f"{path}: a line is longer than {_BLOCK_BYTES >> 20} MiB")
        if total > _MOST_BYTES:
            raise UserError(f"{path} holds more than {_MOST_BYTES >> 30} GiB of text")
        if whole.strip():
            yield whole + newline
        if not read:
            return


def _check_first_object(whole: bytes, path: Path) -> None:
    """The schema fills what is missing with nulls, so the first line must hold the names."""
    line = whole.lstrip().partition(b"\n")[0]
    first = pyarrow.json.read_json(pa.BufferReader(line + b"\n"))
    _check_names(first.column_names, path)


def _parquet(file: IO[bytes], path: Path) -> Iterator[pa.RecordBatch]:
    reader = pyarrow.parquet.ParquetFile(file)
    names = reader.schema_arrow.names
    _check_names(names, path)
    wanted = [name for name in _COLUMNS if name in names]
    for batch in reader.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
        yield from _typed(pa.Table.from_batches([batch])).to_batches()


def _typed(table: pa.Table) -> pa.Table:
    """Numbers cast to their types, names encoded; raises ArrowInvalid naming what does not fit."""
    arrays = []
    for name in table.column_names:
        column = table.column(name)
        try:
            if pa.types.is_dictionary(_COLUMNS[name]):
                if not pa.types.is_dictionary(column.type):
                    column = column.cast(pa.string()).dictionary_encode()
                column = column.cast(_COLUMNS[name])
            else:
                column = column.cast(_COLUMNS[name])
        except pa.ArrowException as error:
            raise UserError(f"column {name}: {_first_sentence(error)}") from error
        arrays.append(column)
    return pa.Table.from_arrays(arrays, names=table.column_names).combine_chunks()


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_dictionary(kind) else kind


def _first_sentence(error: BaseException) -> str:
    return str(error).partition("\n")[0].rstrip(". ")[:300]


def _check_names(found: Iterable[str], path: Path) -> None:
    """Raises UserError for a required column that is missing and for a column that comes twice."""
    names = list(found)
    missing = [name for name in _REQUIRED if name not in names]
    if missing:
        raise UserError(
            f"{path}: column {', '.join(missing)} is missing; expected {', '.join(_REQUIRED)}"
            f" and optionally {', '.join(_OPTIONAL)}"
        )
    twice = [name for name in _COLUMNS if names.count(name) > 1]
    if twice:
        raise UserError(f"{path}: column {', '.join(twice)} comes twice")


class _Columns:
    """Columns of the blocks so far, with one numbering of names for all of them."""

    def __init__(self) -> None:
        self.rows = 0
        self.incomplete = 0
        self.broken = 0
        self._parts: dict[str, list[NDArray[np.generic]]] = {name: [] for name in _COLUMNS}
        self._names: dict[str, dict[str, int]] = {"operation": {}, "kind": {}, "group": {"": 0}}

    def add(self, block: pa.RecordBatch) -> None:
        """Add the complete rows; raises UserError where a column of names holds something else."""
        self.rows += block.num_rows
        complete = np.ones(block.num_rows, dtype=np.bool_)
        found = {name: self._column(block, name) for name in _COLUMNS}
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
        """Count a line with too few or too many columns."""
        self.broken += 1

    def _column(self, block: pa.RecordBatch, name: str) -> NDArray[np.generic]:
        present = name in block.schema.names
        if name in self._names:
            if not present:
                return np.zeros(block.num_rows, dtype=np.int32)
            return self._numbers(block.column(name), name)
        missing = 0.0 if name in _WHOLE_NUMBERS and name in _OPTIONAL else np.nan
        if not present:
            return np.full(block.num_rows, missing)
        column = block.column(name).fill_null(missing)
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)

    def _numbers(self, column: pa.DictionaryArray, name: str) -> NDArray[np.int32]:
        names = self._names[name]
        own = [str(each) for each in column.dictionary.to_pylist()] or [""]
        numbers = np.array([names.setdefault(each, len(names)) for each in own], dtype=np.int32)
        if len(names) > _MOST_NAMES:
            raise UserError(f"column {name} holds more than {_MOST_NAMES:,} different names")
        indices = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return np.where(indices >= 0, numbers[np.maximum(indices, 0)], 0).astype(np.int32)

    def table(self) -> OperationTable:
        """All blocks as one table, in which an unknown kind is -1."""
        kinds = {kind.name.lower(): int(kind) for kind in Kind}
        numbers = [kinds.get(name.strip().lower(), _UNKNOWN_KIND) for name in self._names["kind"]] or [-1]
        of: dict[str, NDArray[Any]] = {name: self._joined(name) for name in _COLUMNS}
        return OperationTable(
            step=of["step"],
            rank=of["rank"],
            operation=of["operation"],
            kind=np.array(numbers, dtype=np.int8)[of["kind"]],
            start_seconds=of["start_seconds"],
            duration_seconds=of["duration_seconds"],
            stage=of["stage"],
            replica=of["replica"],
            microbatch=of["microbatch"],
            group=of["group"],
            work=of["work"],
            operations=tuple(self._names["operation"]),
            groups=tuple(self._names["group"]),
        )

    def _joined(self, name: str) -> NDArray[Any]:
        return np.concatenate(self._parts.pop(name))
