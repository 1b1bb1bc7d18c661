"""`python -m tests.bench.published_analyzer --analyzer DIR`: our diagnosis beside ByteDance's analyzer.

DIR is a clone of github.com/ByteDance-Seed/StragglerAnalysis; `--python` names an interpreter that has what
its requirements.txt asks for. Both get the recorded tables of two real jobs in ../shared/data as Parquet,
under the names of columns that each of them knows, and run as the command that a person types. Exit status 0
whatever the result is; without the clone or the tables nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from support.paths import RECORDED

from .process_usage import run
from .result import Result, Row, as_markdown

JOBS = ("job-a", "job-b")
TABLES = RECORDED / "operation_tables"
_MOST_DIFFERENCE = 0.02
_THEIR_NAMES = {
    "operation": "optype",
    "start_seconds": "start_ts",
    "duration_seconds": "duration",
    "replica": "dp_rank",
    "microbatch": "mb_id",
}


class Measured(NamedTuple):
    """One run of a command."""

    cpu_seconds: float
    slowdown: float
    """S: the job over a job in which nothing differs."""


def main(arguments: Sequence[str]) -> int:
    """Run both on both jobs and print a table."""
    given = _parser().parse_args(arguments)
    program = None if given.analyzer is None else given.analyzer / "analyzer" / "wia.py"
    if program is None or not program.is_file():
        print("nothing measured: --analyzer names no clone of github.com/ByteDance-Seed/StragglerAnalysis")
        return 0
    if not TABLES.is_dir():
        print(f"nothing measured: no operation tables of real jobs in {TABLES}")
        return 0
    rows: list[Row] = []
    samples: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as directory:
        for job in JOBS:
            theirs, ours = _write(job, Path(directory))
            ran = [(_theirs(program, given.python, theirs), _ours(ours)) for _ in range(given.repetitions)]
            samples[job] = [[each._asdict() for each in pair] for pair in ran]
            rows += _rows(job, [pair[0] for pair in ran], [pair[1] for pair in ran])
    print(as_markdown(Result(title="Beside the published analyzer", rows=tuple(rows), samples=samples)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.published_analyzer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--analyzer", type=Path, metavar="DIR", help="its clone")
    parser.add_argument(
        "--python", type=Path, default=Path(sys.executable), metavar="FILE", help="its interpreter"
    )
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="default 5")
    return parser


def _write(job: str, directory: Path) -> tuple[Path, Path]:
    """The table in their form (with what it is made of in a YAML file beside it), and in ours."""
    table = pa.csv.read_csv(TABLES / f"{job}.csv.gz")
    ours = directory / f"{job}-ours.parquet"
    pa.parquet.write_table(table, ours)
    table = table.sort_by([("step", "ascending"), ("rank", "ascending"), ("start_seconds", "ascending")])
    names = [_THEIR_NAMES.get(name, name) for name in table.column_names]
    table = table.rename_columns(names).drop_columns(["group", "kind"])
    stages, replicas = (int(np.max(table[name])) + 1 for name in ("stage", "dp_rank"))
    table = table.append_column("seq_id", pa.array(_sequence(table)))
    table = table.append_column("mc", pa.array(np.zeros(len(table), dtype=np.int64)))
    table = table.append_column("gmc", table["stage"])
    optype = table.schema.get_field_index("optype")
    table = table.set_column(optype, "optype", table["optype"].dictionary_encode())
    theirs = directory / f"{job}.parquet"
    pa.parquet.write_table(table, theirs)
    theirs.with_suffix(".yaml").write_text(
        f"trial_name: {job}\ndp_size: {replicas}\npp_size: {stages}\nworld_size: {replicas * stages}\n"
    )
    return theirs, ours


def _sequence(table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """By row: how many of the same rank and type came before it in the step."""
    seen: dict[tuple[object, ...], int] = {}
    numbers = np.empty(len(table), dtype=np.int64)
    columns = (table[name].to_pylist() for name in ("step", "rank", "optype"))
    for row, key in enumerate(zip(*columns, strict=True)):
        numbers[row] = seen.get(key, 0)
        seen[key] = int(numbers[row]) + 1
    return numbers


def _theirs(program: Path, python: Path, table: Path) -> Measured:
    """Its analysis, without the files for its pictures, which is more than S."""
    command = [str(python), str(program), "--metadata", str(table.with_suffix(".yaml"))]
    command += ["--trace", str(table), "--dump-dir", str(table.parent)]
    ran = run(command, PYTHONPATH=str(program.parents[1]))
    found = json.loads(table.with_suffix(".json").read_text())
    return Measured(ran.cpu_seconds, float(found["blocking_slowdown"]))


def _ours(table: Path) -> Measured:
    command = [sys.executable, "-m", "rankwatch_cli", "diagnose", "straggler", str(table), "--json"]
    ran = run(command)
    return Measured(ran.cpu_seconds, float(json.loads(ran.output).get("slowdown_if_all_fixed") or "nan"))


def _rows(job: str, theirs: Sequence[Measured], ours: Sequence[Measured]) -> Iterator[Row]:
    their, our = (statistics.median(each.cpu_seconds for each in measured) for measured in (theirs, ours))
    both = f"{our:.2f} s / {their:.2f} s"
    yield Row(f"{job}: CPU time, ours / theirs", f"{our / their:.2f}", both, "<= 1", our <= their)
    our, their = ours[0].slowdown, theirs[0].slowdown
    close = bool(abs(our / their - 1.0) <= _MOST_DIFFERENCE)
    both = f"{our:.4f} / {their:.4f}"
    yield Row(f"{job}: S, ours against theirs", f"{our / their - 1.0:+.2%}", both, "within 2 %", close)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
