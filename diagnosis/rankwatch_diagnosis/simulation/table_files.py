"""Writes a table of operations as CSV, JSON lines or Parquet, with the columns that `diagnose` reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from rankwatch_diagnosis.operations.table import Kind, OperationTable

_BATCH_ROWS = 65_536


def write_table(table: OperationTable, path: Path, form: str) -> None:
    """Write it in one of FORMS; raises OSError, and KeyError for another form."""
    FORMS[form](_as_arrow(table), path)


def _as_arrow(table: OperationTable) -> pa.Table:
    kinds = [kind.name.lower() for kind in Kind]
    known = ~np.isnan(table.work)
    columns = {
        "step": table.step,
        "rank": table.rank,
        "operation": _words(table.operation, table.operations),
        "kind": _words(table.kind, kinds),
        "start_seconds": table.start_seconds,
        "duration_seconds": table.duration_seconds,
        "stage": table.stage,
        "replica": table.replica,
        "microbatch": table.microbatch,
        "group": _words(table.group, table.groups),
    }
    if known.any():
        columns["work"] = pa.array(table.work, mask=~known)
    return pa.table(columns)


def _words(numbers: np.ndarray, words: tuple[str, ...] | list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32)), list(words)).cast(pa.string())


def _write_csv(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as stream:
        _stream_csv(table, stream)


def _write_gzipped_csv(table: pa.Table, path: Path) -> None:
    with pa.CompressedOutputStream(str(path), "gzip") as stream:
        _stream_csv(table, stream)


def _stream_csv(table: pa.Table, stream: pa.NativeFile) -> None:
    # pyarrow would put the names of columns in quotation marks.
    stream.write((",".join(table.column_names) + "\n").encode())
    pa_csv.write_csv(table, stream, pa_csv.WriteOptions(include_header=False, quoting_style="none"))


def _write_json_lines(table: pa.Table, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            file.writelines(json.dumps(row) + "\n" for row in batch.to_pylist())


def _write_parquet(table: pa.Table, path: Path) -> None:
    pa_parquet.write_table(table, str(path))


FORMS: Mapping[str, Callable[[pa.Table, Path], None]] = MappingProxyType(
    {
        "csv": _write_csv,
        "csv.gz": _write_gzipped_csv,
        "jsonl": _write_json_lines,
        "parquet": _write_parquet,
    }
)
"""Ending of a file name -> its writer."""
