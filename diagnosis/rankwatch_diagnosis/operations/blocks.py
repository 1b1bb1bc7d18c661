"""Reads the rows of a CSV, JSONL or Parquet file block by block, so that no file is loaded whole before it
is known to fit.

A block that is in order goes through pyarrow at full speed. A block with a cell that is no number, or a line
that is no JSON, is read again cell by cell: what is broken is left out and the rest of it counts. Names are
bytes until the table is made: a file of Parquet may hold some that are no UTF-8.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.opening import open_bytes, unpacked

_BLOCK_BYTES = 8 << 20
_MOST_BYTES = 2 << 30
"""Of text, unpacked: 400 for each of the operations that the diagnosis takes at most."""
_BATCH_ROWS = 1 << 17
_PARQUET = b"PAR1"
_FOOTER_END_BYTES = 8
"""At the end of the file: how many bytes describe it, and the four bytes it also begins with."""
_MOST_FOOTER_BYTES = 16 << 20
"""A table of 60 million operations has some 10 kB."""

_NAMES = pa.dictionary(pa.int32(), pa.binary())
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
OPTIONAL: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "stage": _WHOLE,
        "replica": _WHOLE,
        "microbatch": _WHOLE,
        "group": _NAMES,
        "work": pa.float64(),
    }
)
"""Columns that may be missing: 0, no group, and work unknown then."""
COLUMNS: Mapping[str, pa.DataType] = MappingProxyType({**_REQUIRED, **OPTIONAL})
"""Name -> type of the columns in a block: a float, or an index into names, which are bytes."""
_MISSING = ("", "NA", "null", "None", "none")
OnBrokenRow = Callable[[], None]


def blocks_of(path: Path, on_broken_row: OnBrokenRow) -> Iterator[pa.RecordBatch]:
    """Yield blocks of rows with the known columns in their types; raise UserError if a file cannot be read.

    `on_broken_row` is called for each line that has too few or too many columns, or is no JSON object. A cell
    that is no number is null.
    """
    try:
        with open_bytes(path) as file:
            if file.peek(4)[:4] == _PARQUET:
                yield from _parquet(file, path)
                return
            stream = unpacked(file, path)
            name = path.name.lower().removesuffix(".gz")
            if name.endswith((".jsonl", ".ndjson", ".json")):
                yield from _jsonl(stream, path, on_broken_row)
            else:
                yield from _csv(stream, path, on_broken_row)
    except (pa.ArrowException, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"{path}: {_first_sentence(error)}") from error
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or _first_sentence(error)
        raise UserError(f"could not read {path}: {reason}") from error


def _csv(file: IO[bytes], path: Path, on_broken_row: OnBrokenRow) -> Iterator[pa.RecordBatch]:
    first = file.readline(1 << 16)
    if not first.strip():
        raise UserError(f"{path} is empty")
    header = [name.strip().strip('"') for name in first.decode(errors="replace").lstrip("\ufeff").split(",")]
    _check_names(header, path)
    for block in _lines(file, path):
        lines = _without_open_quotes(block, on_broken_row)
        try:
            broken, table = _csv_block(lines, header, COLUMNS)
        except pa.ArrowInvalid:
            broken, text = _csv_block(lines, header, dict.fromkeys(COLUMNS, pa.binary()))
            table = _lenient(text)
        for _ in range(broken):
            on_broken_row()
        yield from table.to_batches()


def _without_open_quotes(lines: bytes, on_broken_row: OnBrokenRow) -> bytes:
    """Drop lines that leave a quotation mark open: it would swallow the lines that follow."""
    if b'"' not in lines:
        return lines
    closed = []
    for line in lines.splitlines(keepends=True):
        if line.count(b'"') % 2:
            on_broken_row()
        else:
            closed.append(line)
    return b"".join(closed)


def _csv_block(lines: bytes, header: list[str], types: Mapping[str, pa.DataType]) -> tuple[int, pa.Table]:
    """Return the number of rows with too few or too many columns, and the others; raises ArrowInvalid."""
    broken: list[pyarrow.csv.InvalidRow] = []

    def skip(row: pyarrow.csv.InvalidRow) -> str:
        broken.append(row)
        return "skip"

    # One block after another in this thread: a reader that reads ahead may still run when Python ends.
    table = pyarrow.csv.read_csv(
        pa.BufferReader(lines),
        read_options=pyarrow.csv.ReadOptions(block_size=2 * _BLOCK_BYTES, column_names=header),
        parse_options=pyarrow.csv.ParseOptions(invalid_row_handler=skip),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types,
            include_columns=[name for name in COLUMNS if name in header],
            strings_can_be_null=True,
            null_values=list(_MISSING),
        ),
    )
    return len(broken), table


def _jsonl(file: IO[bytes], path: Path, on_broken_row: OnBrokenRow) -> Iterator[pa.RecordBatch]:
    options = pyarrow.json.ParseOptions(
        explicit_schema=pa.schema(
            [(name, pa.string() if kind == _NAMES else kind) for name, kind in COLUMNS.items()]
        ),
        unexpected_field_behavior="ignore",
    )
    named = False
    for lines in _lines(file, path):
        if not named:  # the schema fills what is missing with nulls, so the first object must hold the names
            first = next((row for row in map(_object, lines.splitlines()) if row), None)
            named = first is not None
            _check_names(first or (), path)
        try:
            table = pyarrow.json.read_json(
                pa.BufferReader(lines),
                read_options=pyarrow.json.ReadOptions(block_size=2 * _BLOCK_BYTES),
                parse_options=options,
            )
        except pa.ArrowInvalid:
            table = _json_rows(lines, on_broken_row)
        yield from _typed(table).to_batches()


def _json_rows(lines: bytes, on_broken_row: OnBrokenRow) -> pa.Table:
    """Return the objects of a block in which something is wrong, their cells as text."""
    rows: list[dict[str, Any]] = []
    for line in filter(None, map(bytes.strip, lines.split(b"\n"))):
        row = _object(line)
        if row is None:
            on_broken_row()
        else:
            rows.append(row)
    cells = {name: [_text(row.get(name)) for row in rows] for name in COLUMNS}
    return pa.table({name: pa.array(values, pa.binary()) for name, values in cells.items()})


def _object(line: bytes) -> dict[str, Any] | None:
    """Return the object in a line; None where it holds none."""
    try:
        row = msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _text(cell: object) -> bytes | None:
    """Return a cell of JSON as it would stand in a CSV, where a list or an object is none."""
    return None if cell is None or isinstance(cell, list | dict) else str(cell).encode("utf-8", "replace")


def _lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield blocks of whole lines in UTF-8, no empty ones; raise UserError where a line or all are too long.

    A byte that is no UTF-8 is replaced here: pyarrow would refuse its whole column, and not even say so for a
    row that it leaves out.
    """
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
            yield _as_utf8(whole + newline)
        if not read:
            return


def _as_utf8(text: bytes) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace").encode()
    return text


def _parquet(file: IO[bytes], path: Path) -> Iterator[pa.RecordBatch]:
    """Keep a text that stands in many rows once: a small file must not take all memory."""
    schema = _parquet_schema(file, path)
    _check_names(schema.names, path)
    wanted = [schema.field(name) for name in COLUMNS if name in schema.names]
    nested = [each.name for each in wanted if pa.types.is_nested(each.type)]
    if nested:
        raise UserError(f"{path}: column {', '.join(nested)} holds lists or records")
    texts = [each.name for each in wanted if not _is_number(each.type)]
    reader = pyarrow.parquet.ParquetFile(file, read_dictionary=texts)
    for batch in reader.iter_batches(batch_size=_BATCH_ROWS, columns=[each.name for each in wanted]):
        yield from _typed(pa.Table.from_batches([batch])).to_batches()


def _parquet_schema(file: IO[bytes], path: Path) -> pa.Schema:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _FOOTER_END_BYTES))
    length = int.from_bytes(file.read(4), "little")
    file.seek(0)
    if length > _MOST_FOOTER_BYTES:
        raise UserError(f"{path} is no table of operations: its description has {length:,} bytes")
    return pyarrow.parquet.ParquetFile(file).schema_arrow


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind))


def _typed(table: pa.Table) -> pa.Table:
    """Turn numbers into floats, and names into bytes with indices; cells that do not fit become null."""
    columns = dict(zip(table.column_names, table.columns, strict=True))
    try:
        typed = {
            name: _bytes(column, name).dictionary_encode().cast(_NAMES)
            if COLUMNS[name] == _NAMES
            else _without_texts(column).cast(COLUMNS[name])
            for name, column in columns.items()
        }
        return pa.table(typed).combine_chunks()
    except pa.ArrowException:
        return _lenient(pa.table({name: _bytes(column, name) for name, column in columns.items()}))


def _bytes(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return the text of each cell; raises UserError for a column of lists or of other things without text.

    Where texts have numbers, they keep them.
    """
    kind = column.type
    try:
        if pa.types.is_dictionary(kind):
            chunks = [
                pa.DictionaryArray.from_arrays(each.indices.cast(pa.int32()), _texts(each.dictionary))
                for each in column.chunks
            ]
            return pa.chunked_array(chunks, _NAMES)
        return _texts(column)
    except pa.ArrowException as error:
        raise UserError(f"column {name}: {_first_sentence(error)}") from error


def _texts(values: Any) -> Any:
    """Return texts, an array or a column of them, as bytes."""
    kind = values.type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        values = values.cast(pa.large_binary())
    elif not (pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        values = values.cast(pa.string())
    return values.cast(pa.binary())


def _lenient(text: pa.Table) -> pa.Table:
    """Convert columns of bytes to their types; a cell that is no number is null.

    Raises UserError for a column of numbers that holds none: it is something else.
    """
    columns = {}
    for name, column in zip(text.column_names, text.columns, strict=True):
        if COLUMNS[name] == _NAMES:
            columns[name] = column.dictionary_encode().cast(_NAMES)
        else:
            columns[name] = _as_numbers(column, name)
    return pa.table(columns).combine_chunks()


def _without_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of numbers. Raises ArrowException if they are texts with numbers of their own."""
    if pa.types.is_dictionary(column.type) and not _is_number(column.type.value_type):
        raise pa.ArrowInvalid("texts")
    return column


def _as_numbers(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(column.type):
        return pa.chunked_array([pa.array(_numbers(column.to_pylist(), name), COLUMNS[name])])
    column = column.unify_dictionaries()
    known = [pa.array(_numbers(each.dictionary.to_pylist(), name), COLUMNS[name]) for each in column.chunks]
    taken = [each.take(chunk.indices) for each, chunk in zip(known, column.chunks, strict=True)]
    return pa.chunked_array(taken, COLUMNS[name])


def _numbers(cells: Sequence[bytes | None], name: str) -> list[float | None]:
    numbers = [None if cell is None else _number(cell) for cell in cells]
    if all(number is None for number in numbers):
        wrong = next((cell for cell in cells if cell is not None), None)
        if wrong is not None:
            raise UserError(f"column {name}: {wrong.decode('utf-8', 'replace')[:40]!r} is no number")
    return numbers


def _number(cell: bytes) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _first_sentence(error: BaseException) -> str:
    return str(error).partition("\n")[0].rstrip(". ")[:300]


def _check_names(found: Iterable[str], path: Path) -> None:
    """Raise UserError for a required column that is missing and for a column that comes twice."""
    names = list(found)
    missing = [name for name in _REQUIRED if name not in names]
    if missing:
        raise UserError(
            f"{path}: column {', '.join(missing)} is missing; expected {', '.join(_REQUIRED)}"
            f" and optionally {', '.join(OPTIONAL)}"
        )
    twice = [name for name in COLUMNS if names.count(name) > 1]
    if twice:
        raise UserError(f"{path}: column {', '.join(twice)} comes twice")
