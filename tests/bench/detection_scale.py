"""`python -m tests.bench.detection_scale`: time and memory of a straggler diagnosis by size of the table.

Three sizes of one job: a data-parallel step of one computation and one all-reduce, one rank 6 % slow. Where
the tables of real jobs are in ../shared/data, these too, and the larger one with each replica 14 times. Each
table runs in its own process and is read from a file, so that reading counts too. Time is CPU time of one
thread: on a machine that does nothing else, what one waits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from support.paths import RECORDED

from .process_usage import resident_bytes
from .result import Result, Row, as_markdown

RANKS = (1_024, 4_096, 16_384)
STEPS = 50
MOST_SECONDS = 10.0
MOST_BYTES = 2**30
MOST_SECONDS_RECORDED = 1.5
SLOW_RANK = 7
RECORDED_JOBS = (
    RECORDED / "operation_tables" / "job-a.csv.gz",
    RECORDED / "operation_tables" / "job-b.csv.gz",
)
COPIES = 14
"""1.6 million rows of the first recorded job."""


def main(arguments: Sequence[str]) -> int:
    """Measure the sizes and print a table. Exit status 0 whatever the result is."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.detection_scale", description=__doc__)
    parser.add_argument("--one", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one is not None:
        print(json.dumps(_measure(given.one)))
        return 0
    samples = [_made(partial(write_job, ranks=ranks, steps=STEPS)) for ranks in RANKS]
    recorded = [_diagnosed(path) for path in RECORDED_JOBS if path.is_file()]
    wide = [_made(partial(write_wide_job, recorded=path)) for path in RECORDED_JOBS[:1] if path.is_file()]
    print(as_markdown(_result(samples, recorded, wide)))
    return 0


def write_job(path: Path, ranks: int, steps: int) -> int:
    """One row for the computation and one for the all-reduce of each rank and step; returns the rows."""
    random = np.random.default_rng(0)
    compute = 0.1 * np.exp(0.03 * random.standard_normal((steps, ranks)))
    compute[:, SLOW_RANK] *= 1.06
    ends = compute.max(axis=1, keepdims=True) + 0.01
    begins = np.broadcast_to(np.cumsum(ends, axis=0) - ends, compute.shape)
    step = np.broadcast_to(np.arange(steps)[:, None], compute.shape)
    rank = np.broadcast_to(np.arange(ranks), compute.shape)
    both = {
        "step": (step, step),
        "rank": (rank, rank),
        "start_seconds": (begins, begins + compute),
        "duration_seconds": (compute, ends - compute),
        "replica": (rank, rank),
    }
    columns = {name: np.concatenate([part.ravel() for part in parts]) for name, parts in both.items()}
    half = steps * ranks
    columns["operation"] = np.repeat(["forward_backward", "all_reduce"], half)
    columns["kind"] = np.repeat(["compute", "communication"], half)
    columns["group"] = np.repeat(["", "world"], half)
    pyarrow.parquet.write_table(pa.table(columns), path)
    return 2 * half


def write_wide_job(path: Path, recorded: Path) -> None:
    """A recorded job with `COPIES` of each replica; their data-parallel groups span all copies.

    The copies differ a little, and each has its own copy of a slow rank.
    """
    table = pa.csv.read_csv(recorded)
    ranks, replicas = (int(np.max(table[name])) + 1 for name in ("rank", "replica"))
    random = np.random.default_rng(0)
    copies = []
    for copy in range(COPIES):
        groups = [
            f"{name}-{copy}" if name and not name.startswith("dp-") else name
            for name in table["group"].to_pylist()
        ]
        columns = {
            "rank": pa.array(np.asarray(table["rank"]) + copy * ranks),
            "replica": pa.array(np.asarray(table["replica"]) + copy * replicas),
            "start_seconds": pa.array(np.asarray(table["start_seconds"]) + random.uniform(0.0, 1e-5)),
            "group": pa.array(groups),
        }
        copied = table
        for name, column in columns.items():
            copied = copied.set_column(copied.schema.get_field_index(name), name, column)
        copies.append(copied)
    pyarrow.parquet.write_table(pa.concat_tables(copies), path)


def _made(write: Callable[[Path], object]) -> dict[str, float]:
    """The diagnosis of a table that this writes."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "job.parquet"
        write(path)
        return _diagnosed(path)


def _diagnosed(path: Path) -> dict[str, float]:
    """Read and diagnosed in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.detection_scale", "--one", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout)
    return {"name": path.name.partition(".")[0], **measured}


def _measure(path: Path) -> dict[str, object]:
    from rankwatch_diagnosis.operations.reading import read_operations
    from rankwatch_diagnosis.straggler.engine import diagnose

    began, began_cpu = time.perf_counter(), time.process_time()
    table = read_operations(path).table
    read = time.process_time()
    verdict = diagnose(table)
    done = time.process_time()
    return {
        "rows": len(table),
        "ranks": len(np.unique(table.rank)),
        "read_seconds": read - began_cpu,
        "diagnose_seconds": done - read,
        "wall_seconds": time.perf_counter() - began,
        # `ru_maxrss` counts what the process was before it ran this program, too.
        "peak_bytes": resident_bytes(os.getpid())[1],
        "ranks_named": list(verdict.ranks),
    }


def _result(
    samples: list[dict[str, float]], recorded: list[dict[str, float]], wide: list[dict[str, float]]
) -> Result:
    rows = [
        *(_row(each) for each in samples),
        *_limits("the largest", samples[-1]),
        *(_row(each, MOST_SECONDS_RECORDED) for each in recorded),
        *(_row(each) for each in wide),
        *(row for each in wide for row in _limits("the real job, widened", each)),
    ]
    return Result(
        title="Straggler diagnosis by size",
        rows=tuple(rows),
        samples={"sizes": samples, "recorded": recorded, "wide": wide},
    )


def _row(sample: dict[str, float], most_seconds: float | None = None) -> Row:
    seconds = sample["read_seconds"] + sample["diagnose_seconds"]
    return Row(
        f"{sample['name']}: {sample['ranks']:,} ranks, {sample['rows']:,} rows",
        f"{seconds:.2f} s",
        f"waited {sample['wall_seconds']:.2f} s; read {sample['read_seconds']:.2f} s;"
        f" {sample['peak_bytes'] / 2**20:.0f} MiB;"
        f" {1e6 * sample['diagnose_seconds'] / sample['rows']:.2f} s per million rows",
        "" if most_seconds is None else f"<= {most_seconds} s",
        None if most_seconds is None else seconds <= most_seconds,
    )


def _limits(what: str, sample: dict[str, float]) -> tuple[Row, Row]:
    seconds, memory = sample["read_seconds"] + sample["diagnose_seconds"], sample["peak_bytes"]
    return (
        Row(f"time of {what}", f"{seconds:.1f} s", "", "<= 10 s", seconds <= MOST_SECONDS),
        Row(f"memory of {what}", f"{memory / 2**30:.2f} GiB", "", "<= 1 GiB", memory <= MOST_BYTES),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
