"""Writes a table of operations as CSV, JSON lines or Parquet, with the columns that `diagnose` reads.

Names of groups and operations come from the training process. In CSV they are quoted where they need it, none
is a formula for a spreadsheet, and a character that could break the line is a question mark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from rankwatch.untrusted.text import printable, spreadsheet_cell
from rankwatch_diagnosis.operations.table import Kind, OperationTable

FORMS = ("csv", "csv.gz", "jsonl", "jsonl.gz", "parquet")
"""Endings of file names that tell how to write a table."""
_BATCH_ROWS = 65_536


def write_table(table: OperationTable, target: Path | BinaryIO, form: str) -> None:
    """Write it in one of FORMS; raises OSError, and KeyError for another form."""
    rows = _as_arrow(table, spreadsheet_cell if form.startswith("csv") else printable)
    file = str(target) if isinstance(target, Path) else target
    if form == "parquet":
        pa_parquet.write_table(rows, file)
        return
    blocks = {"csv": _csv_blocks, "jsonl": _json_lines}[form.removesuffix(".gz")]
    with pa.output_stream(file, compression="gzip" if form.endswith(".gz") else None) as stream:
        for block in blocks(rows):
            stream.write(block)


def _as_arrow(table: OperationTable, shown: Callable[[str], str]) -> pa.Table:
    kinds = [kind.name.lower() for kind in Kind]
    known = ~np.isnan(table.work)
    columns = {
        "step": table.step,
        "rank": table.rank,
        "operation": _words(table.operation, map(shown, table.operations)),
        "kind": _words(table.kind, kinds),
        "start_seconds": table.start_seconds,
        "duration_seconds": table.duration_seconds,
        "stage": table.stage,
        "replica": table.replica,
        "microbatch": table.microbatch,
        "group": _words(table.group, map(shown, table.groups)),
    }
    if known.any():
        columns["work"] = pa.array(table.work, mask=~known)
    return pa.table(columns)


def _words(numbers: np.ndarray, words: Iterable[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32)), [*words]).cast(pa.string())


def write_csv(table: OperationTable, stream: BinaryIO) -> None:
    """Write it as CSV to an open stream; raises OSError."""
    for block in _csv_blocks(_as_arrow(table, spreadsheet_cell)):
        stream.write(block)


def _csv_blocks(table: pa.Table) -> Iterator[bytes]:
    yield (",".join(table.column_names) + "\n").encode()  # pyarrow would put them in quotation marks
    quoting = (
        "needed" if any(_needs_quotes(table.column(name)) for name in ("operation", "group")) else "none"
    )
    options = pa_csv.WriteOptions(include_header=False, quoting_style=quoting)
    for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
        sink = pa.BufferOutputStream()
        pa_csv.write_csv(batch, sink, options)
        yield sink.getvalue().to_pybytes()


def _needs_quotes(names: pa.ChunkedArray) -> bool:
    return any(set(name) & set(',"') for name in names.unique().to_pylist())


def _json_lines(table: pa.Table) -> Iterator[bytes]:
    for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
        yield b"".join(json.dumps(row).encode() + b"\n" for row in batch.to_pylist())
