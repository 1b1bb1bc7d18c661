"""Tables on disk, read back with the libraries that a person would use."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from bench.simulation.job import Job, simulate
from bench.simulation.program import JobShape
from rankwatch_diagnosis.operations.reading import read_operations
from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.operations.writing import FORMS, write_table

COLUMNS = [
    *("step", "rank", "operation", "kind", "start_seconds", "duration_seconds"),
    *("stage", "replica", "microbatch", "group"),
]


def table(*, work: bool) -> OperationTable:
    return simulate(Job(shape=JobShape(data_parallel=2, pipeline_parallel=2), steps=2, with_work=work)).table


def read(path: Path) -> list[dict[str, object]]:
    if path.name.endswith(".parquet"):
        rows: list[dict[str, object]] = pyarrow.parquet.read_table(str(path)).to_pylist()
        return rows
    content = path.read_bytes()
    lines = (gzip.decompress(content) if path.name.endswith(".gz") else content).decode().splitlines()
    if ".jsonl" in path.name:
        return [json.loads(line) for line in lines]
    return list(csv.DictReader(lines))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("work", [True, False])
def test_table_files(form: str, work: bool, tmp_path: Path) -> None:
    """Every format holds every row exactly, with work units where there are any."""
    written = table(work=work)
    path = tmp_path / f"operations.{form}"
    write_table(written, path, form)
    rows = read(path)
    assert list(rows[0]) == [*COLUMNS, *(["work"] if work else [])]
    assert [float(str(row["duration_seconds"])) for row in rows] == written.duration_seconds.tolist()
    assert [int(str(row["rank"])) for row in rows] == written.rank.tolist()
    names = [written.operations[number] for number in written.operation]
    assert [row["operation"] for row in rows] == names
    assert {row["kind"] for row in rows} == {"compute", "communication", "data_loading", "other"}
    assert {row["group"] or "" for row in rows} == set(written.groups)
    if work:
        units = [float(str(row["work"])) if row["work"] not in (None, "") else np.nan for row in rows]
        assert np.array_equal(units, written.work, equal_nan=True)


@pytest.mark.parametrize("form", FORMS)
def test_names_of_a_training_process(form: str, tmp_path: Path) -> None:
    """Names with commas and quotation marks survive every format; a line break cannot make a second row."""
    plain = table(work=False)
    groups = ('"dp" (0-2,5)', *(f"g,{number}" for number in range(1, len(plain.groups))))
    odd = ("for\nward,\x1b[2J", *plain.operations[1:])
    path = tmp_path / f"operations.{form}"
    write_table(replace(plain, groups=groups, operations=odd), path, form)
    found, skipped = read_operations(path)
    assert (len(found), skipped) == (len(plain), {})
    assert {found.groups[each] for each in found.group} == set(groups)
    assert "for?ward,?[2J" in found.operations


@pytest.mark.parametrize("form", FORMS)
def test_names_that_are_formulas(form: str, tmp_path: Path) -> None:
    """A spreadsheet runs no name of a training process; other formats keep the name as it is."""
    plain = table(work=False)
    odd = ("=cmd|' /C calc'!A0", *plain.operations[1:])
    path = tmp_path / f"operations.{form}"
    write_table(replace(plain, operations=odd), path, form)
    found, _ = read_operations(path)
    assert (f"'{odd[0]}" if form.startswith("csv") else odd[0]) in found.operations
