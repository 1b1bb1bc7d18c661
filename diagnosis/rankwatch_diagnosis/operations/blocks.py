"""Files of operations, block by block, so that no file is loaded whole before it is known to fit."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.opening import open_bytes
from rankwatch_diagnosis.operations import columns

_BLOCK_BYTES = 8 << 20
_MOST_BYTES = 2 << 30
"""Of text, unpacked: 400 for each of the operations that the diagnosis takes at most."""
_BATCH_ROWS = 1 << 17
_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"


def blocks(path: Path, on_broken_row: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """Blocks of rows with the known columns, in their types; raises UserError where the file is none.

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
    except (OSError, EOFError) as error:  # gzip tells of a truncated file by EOFError
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"could not read {path}: {reason}") from error


def _csv(file: IO[bytes], path: Path, on_broken_row: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    first = file.readline(1 << 16)
    if not first.strip():
        raise UserError(f"{path} is empty")
    header = [name.strip().strip('"') for name in first.decode(errors="replace").lstrip("\ufeff").split(",")]
    columns.check(header, path)
    options = pyarrow.csv.ConvertOptions(
        column_types=columns.ALL,
        include_columns=[name for name in columns.ALL if name in header],
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
        explicit_schema=pa.schema([(name, _plain(kind)) for name, kind in columns.ALL.items()]),
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
    """The schema fills what is missing with nulls, so names are looked for in the first line."""
    line = whole.lstrip().partition(b"\n")[0]
    first = pyarrow.json.read_json(pa.BufferReader(line + b"\n"))
    columns.check(first.column_names, path)


def _parquet(file: IO[bytes], path: Path) -> Iterator[pa.RecordBatch]:
    reader = pyarrow.parquet.ParquetFile(file)
    names = reader.schema_arrow.names
    columns.check(names, path)
    wanted = [name for name in columns.ALL if name in names]
    for batch in reader.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
        yield from _typed(pa.Table.from_batches([batch])).to_batches()


def _typed(table: pa.Table) -> pa.Table:
    """Numbers cast to their types, names encoded; raises ArrowInvalid naming what does not fit."""
    arrays = []
    for name in table.column_names:
        column = table.column(name)
        try:
            if pa.types.is_dictionary(columns.ALL[name]):
                if not pa.types.is_dictionary(column.type):
                    column = column.cast(pa.string()).dictionary_encode()
                column = column.cast(columns.ALL[name])
            else:
                column = column.cast(columns.ALL[name])
        except pa.ArrowException as error:
            raise UserError(f"column {name}: {_first_sentence(error)}") from error
        arrays.append(column)
    return pa.Table.from_arrays(arrays, names=table.column_names).combine_chunks()


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_dictionary(kind) else kind


def _first_sentence(error: BaseException) -> str:
    return str(error).partition("\n")[0].rstrip(". ")[:300]
