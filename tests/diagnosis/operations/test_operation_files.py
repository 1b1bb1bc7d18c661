"""Files of operations: the same table from each format, and one clear sentence for what is none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.hang.worker import bounded_memory
from rankwatch_diagnosis.operations.reading import Reading, read_operations
from rankwatch_diagnosis.operations.table import Kind
from support.fuzzing import NESTED

HEADER = "step,rank,operation,kind,start_seconds,duration_seconds"


def full_rows() -> list[dict[str, object]]:
    """Three operations with all columns."""
    return [
        {
            "step": step,
            "rank": rank,
            "operation": operation,
            "kind": kind,
            "start_seconds": start,
            "duration_seconds": duration,
            "stage": 1,
            "replica": rank,
            "microbatch": 2,
            "group": "dp" if kind == "communication" else "",
            "work": 512.0,
        }
        for step, rank, operation, kind, start, duration in (
            (0, 0, "forward", "compute", 0.0, 1.5),
            (0, 1, "all_reduce", "communication", 1.5, 0.5),
            (1, 0, "load", "data_loading", 2.0, 0.25),
        )
    ]


def write(path: Path) -> Path:
    rows = full_rows()
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
        return path
    if ".jsonl" in path.name:
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        lines = [",".join(str(value) for value in row.values()) for row in rows]
        text = "\n".join([",".join(rows[0]), *lines]) + "\n"
    # Without a time of writing, so that the same rows are the same bytes.
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())
    return path


def csv(tmp_path: Path, *lines: str, header: str = HEADER) -> Reading:
    path = tmp_path / "table.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return read_operations(path)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_formats(tmp_path: Path, name: str) -> None:
    """Every format gives the same table, with all columns in their types."""
    table, skipped = read_operations(write(tmp_path / name))
    assert skipped == {}
    assert (table.step.tolist(), table.rank.tolist()) == ([0, 0, 1], [0, 1, 0])
    assert [table.operations[each] for each in table.operation] == ["forward", "all_reduce", "load"]
    assert table.kind.tolist() == [Kind.COMPUTE, Kind.COMMUNICATION, Kind.DATA_LOADING]
    assert [table.groups[each] for each in table.group] == ["", "dp", ""]
    assert (table.start_seconds.tolist(), table.duration_seconds.tolist()) == ([0, 1.5, 2], [1.5, 0.5, 0.25])
    assert (table.stage.tolist(), table.replica.tolist()) == ([1, 1, 1], [0, 1, 0])
    assert (table.microbatch.tolist(), table.work.tolist()) == ([2, 2, 2], [512.0] * 3)


def test_missing_optional_column(tmp_path: Path) -> None:
    """It is 0 or empty; unknown work is NaN, not 0."""
    table, _ = csv(tmp_path, "0,0,forward,compute,0,1")
    assert (table.stage.tolist(), table.replica.tolist(), table.microbatch.tolist()) == ([0], [0], [0])
    assert (table.groups[table.group[0]], np.isnan(table.work[0])) == ("", True)


def test_missing_column(tmp_path: Path) -> None:
    """The error names it and what was expected."""
    with pytest.raises(UserError, match=r"column kind, duration_seconds is missing; expected step, rank"):
        csv(tmp_path, "0,0,forward,0", header="step,rank,operation,start_seconds")
    (tmp_path / "t.jsonl").write_text('{"step": 1, "rank": 0}\n')
    with pytest.raises(UserError, match="column operation"):
        read_operations(tmp_path / "t.jsonl")
    pyarrow.parquet.write_table(pa.table({"step": [1]}), tmp_path / "t.parquet")
    with pytest.raises(UserError, match="column rank"):
        read_operations(tmp_path / "t.parquet")


def test_wrong_type(tmp_path: Path) -> None:
    """A column of the wrong type is one sentence in every format."""
    with pytest.raises(UserError, match="'soon'") as error:
        csv(tmp_path, "0,0,forward,compute,0,soon")
    assert "\n" not in str(error.value)
    line = dict(full_rows()[0], rank=[1, 2])
    (tmp_path / "t.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(UserError, match="rank"):
        read_operations(tmp_path / "t.jsonl")
    pyarrow.parquet.write_table(
        pa.Table.from_pylist([dict(full_rows()[0], step="x")]), tmp_path / "t.parquet"
    )
    with pytest.raises(UserError, match="column step"):
        read_operations(tmp_path / "t.parquet")


def test_unusable_rows(tmp_path: Path) -> None:
    """Rows that cannot be used are left out and counted by their reason."""
    good = "0,0,forward,compute,0,1"
    table, skipped = csv(
        tmp_path,
        good,
        good,
        "0,1,forward,compute,0,nan",
        "0,1,forward,compute,inf,1",
        "0,1,forward,compute,0,-1",
        "0,1,forward,compute,0,",
        "0,1,forward,dreaming,0,1",
        "0,,forward,compute,0,1",
        "0.5,1,forward,compute,0,1",
        "-1,1,forward,compute,0,1",
        "0,1,forw",
    )
    assert len(table) == 1
    assert sorted(skipped.values()) == [1, 1, 1, 1, 1, 2, 3]
    assert skipped["that repeat step, rank, operation and start"] == 1
    assert skipped["with a start or duration that is no number"] == 3
    assert skipped["with the wrong number of columns, or no JSON object"] == 1


GOOD = b"0,0,forward,compute,0,1"
BROKEN_LINES = {
    "name": (b"0,1,for\xffward,compute,0,1", 2),
    "number": (b"0,1,forward,compute,0,1\xff", 1),
    "text for a number": (b"0,1,forward,compute,soon,1", 1),
    "kind": (b"0,1,forward,com\xedpute,0,1", 1),
    "row of too few columns": (b"0,1,for\xff", 1),
    "open quotation mark": (b'0,1,"forward,compute,0,1', 1),
}


@pytest.mark.parametrize(("line", "rows"), BROKEN_LINES.values(), ids=BROKEN_LINES.keys())
def test_broken_line_of_csv(tmp_path: Path, line: bytes, rows: int) -> None:
    """One broken line costs that line alone; a byte that is no text in a name costs nothing."""
    path = tmp_path / "t.csv"
    after = [b"%d,0,forward,compute,0,1" % step for step in range(1, 6)]
    path.write_bytes(b"\n".join([HEADER.encode(), GOOD, line, *after]) + b"\n")
    table, skipped = read_operations(path)
    assert (len(table), sum(skipped.values())) == (rows + 5, 2 - rows)
    if rows == 2:
        assert table.operations == ("forward", "for\ufffdward")


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        (b'{"step":0,"rank":2,"operation":"\xff",REST}', 3),
        (b'{"step":0,"rank":"x","operation":"f",REST}', 2),
        (b'{"step":0,"rank":[1],"operation":"f",REST}', 2),
        (b'{"step":0,"rank":1,"opera', 2),
        (b"\xff", 2),
        (b"[" * 100_000, 2),
        (b"7", 2),
    ],
    ids=["name", "text for a number", "list", "cut", "byte", "nested", "number"],
)
@pytest.mark.parametrize("first", [False, True])
def test_broken_line_of_json(tmp_path: Path, line: bytes, rows: int, *, first: bool) -> None:
    """One broken line costs that line alone, also where it is the first."""
    line = line.replace(b"REST", b'"kind":"compute","start_seconds":0,"duration_seconds":1')
    good = [json.dumps(row).encode() for row in full_rows()[:2]]
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\n".join([line, *good] if first else [*good, line]) + b"\n")
    table, skipped = read_operations(path)
    assert (len(table), sum(skipped.values())) == (rows, 3 - rows)


def test_cell_nested_too_deep(tmp_path: Path) -> None:
    """It costs its line alone, at whatever depth that is."""
    path = tmp_path / "t.jsonl"
    good = json.dumps(full_rows()[0])
    for deep in NESTED:
        path.write_text("\n".join((good, good.replace('"forward"', deep), "")))
        table, skipped = read_operations(path)
        assert (len(table), sum(skipped.values())) == (1, 1)


@pytest.mark.parametrize("dictionary", [False, True])
def test_name_that_is_no_text_in_parquet(tmp_path: Path, *, dictionary: bool) -> None:
    """A name with a byte that is no UTF-8 is a name; Parquet does not check what it calls a string."""
    raw = pa.array([b"for\xff", b"all_reduce", b"load"], pa.binary())
    names = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    table = pa.Table.from_pylist(full_rows()).drop_columns("operation")
    table = table.append_column("operation", names.dictionary_encode() if dictionary else names)
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    read = read_operations(tmp_path / "t.parquet").table
    assert read.operations == ("for\ufffd", "all_reduce", "load")


def test_rank_in_two_replicas(tmp_path: Path) -> None:
    """Two processes that claim one rank are not averaged: the first replica stays."""
    table, skipped = csv(
        tmp_path, "0,3,forward,compute,0,1,0", "0,3,forward,compute,5,9,1", header=HEADER + ",replica"
    )
    assert table.duration_seconds.tolist() == [1.0]
    assert skipped == {"that put a rank into a second replica": 1}


def test_whole_numbers_as_floats(tmp_path: Path) -> None:
    """pandas writes them so where a column has a gap."""
    table, _ = csv(
        tmp_path, "0.0,3.0,forward,compute,0,1,", "0,3,x,compute,0,1,2.0", header=HEADER + ",stage"
    )
    assert (table.rank.tolist(), table.stage.tolist()) == ([3, 3], [0, 2])


@pytest.mark.parametrize("content", ["", "\n", HEADER + "\n"])
def test_empty_table(tmp_path: Path, content: str) -> None:
    """A table without rows is one sentence."""
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(UserError, match=r"empty|holds no operations"):
        read_operations(tmp_path / "t.csv")
    (tmp_path / "t.jsonl").write_text("")
    with pytest.raises(UserError, match="holds no operations"):
        read_operations(tmp_path / "t.jsonl")


def test_only_unusable_rows(tmp_path: Path) -> None:
    """A table without usable rows is an error with the reasons, not a verdict on nothing."""
    with pytest.raises(UserError, match="no usable operation: 1 with a negative duration"):
        csv(tmp_path, "0,0,forward,compute,0,-1")


@pytest.mark.parametrize(
    "content", [b"\x00\xff\xfe" * 100, b"PAR1 and no more", b"\x1f\x8b\x08broken", b"{{{\n"]
)
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_no_table(tmp_path: Path, name: str, content: bytes) -> None:
    """A file that is no table is one sentence, whatever its name is."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as error:
        read_operations(tmp_path / name)
    assert "\n" not in str(error.value)


def test_unreadable_file(tmp_path: Path) -> None:
    """A truncated archive and a missing file are one sentence with the path."""
    whole = gzip.compress((HEADER + "\n" + "0,0,forward,compute,0,1\n" * 1000).encode())
    (tmp_path / "t.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"t\.csv\.gz"):
        read_operations(tmp_path / "t.csv.gz")
    with pytest.raises(UserError, match=r"nowhere\.csv: No such file"):
        read_operations(tmp_path / "nowhere.csv")


def test_row_limit(tmp_path: Path) -> None:
    """Reading stops at the limit, so that a file of any size costs bounded memory."""
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "\n" + "".join(f"{step},0,forward,compute,{step},1\n" for step in range(100)))
    with pytest.raises(UserError, match="more than 50 operations"):
        read_operations(path, most_rows=50)
    assert len(read_operations(path, most_rows=100).table) == 100


@pytest.mark.parametrize("column", ["operation", "group", "step"])
def test_long_text_in_many_rows(tmp_path: Path, column: str) -> None:
    """Parquet keeps a text once, however many rows it stands in. So does the reader: 3 GB a batch else."""
    rows, path = 100_000, tmp_path / "t.parquet"
    cells: dict[str, object] = {name: [value] * rows for name, value in full_rows()[0].items()}
    text = "7".rjust(30_000, "0")
    cells[column] = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [text])
    pyarrow.parquet.write_table(pa.table(cells), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 1 << 20
    with bounded_memory(512 << 20):
        found = read_operations(path).table
    assert len(found) == 1  # equal rows count once
    assert column != "step" or found.step[0] == 7


def test_endless_description(tmp_path: Path) -> None:
    """A sparse file of Parquet cannot have gigabytes of it read."""
    path = tmp_path / "t.parquet"
    with path.open("wb") as file:
        file.write(b"PAR1")
        file.seek(1 << 33)
        file.write(b"\xff\xff\xff\x7fPAR1")
    with pytest.raises(UserError, match="its description has 2,147,483,647 bytes"):
        read_operations(path)
