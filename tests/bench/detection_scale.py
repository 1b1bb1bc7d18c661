"""`python -m tests.bench.detection_scale`: time and memory of a straggler diagnosis by size of the table.

Three sizes of one job: a data-parallel step of one computation and one all-reduce, one rank 6 % slow. Each
size runs in its own process and reads a Parquet file, so that reading counts too.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from .result import Result, Row, as_markdown

RANKS = (1_024, 4_096, 16_384)
STEPS = 50
MOST_SECONDS = 10.0
MOST_BYTES = 2 * 2**30
SLOW_RANK = 7


def main(arguments: Sequence[str]) -> int:
    """Measure the sizes and print a table. Exit status 0 whatever the result is."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.detection_scale", description=__doc__)
    parser.add_argument("--one", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one is not None:
        print(json.dumps(_measure(given.one)))
        return 0
    samples = [_sample(ranks) for ranks in RANKS]
    print(as_markdown(_result(samples)))
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


def _sample(ranks: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "job.parquet"
        rows = write_job(path, ranks, STEPS)
        command = [sys.executable, "-m", "tests.bench.detection_scale", "--one", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"ranks": ranks, "rows": rows, **json.loads(done.stdout)}


def _measure(path: Path) -> dict[str, object]:
    from rankwatch_diagnosis.operations.reading import read_operations
    from rankwatch_diagnosis.straggler.engine import diagnose

    began = time.perf_counter()
    table = read_operations(path).table
    read = time.perf_counter()
    verdict = diagnose(table)
    return {
        "read_seconds": read - began,
        "diagnose_seconds": time.perf_counter() - read,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "ranks_named": list(verdict.ranks),
    }


def _result(samples: list[dict[str, float]]) -> Result:
    largest = samples[-1]
    seconds = largest["read_seconds"] + largest["diagnose_seconds"]
    rows = [
        Row(
            f"{each['ranks']:,} ranks, {each['rows']:,} rows",
            f"{each['read_seconds'] + each['diagnose_seconds']:.2f} s",
            f"read {each['read_seconds']:.2f} s; {each['peak_bytes'] / 2**20:.0f} MiB;"
            f" {1e6 * each['diagnose_seconds'] / each['rows']:.2f} s per million rows",
        )
        for each in samples
    ]
    rows.append(Row("time of the largest", f"{seconds:.1f} s", "", "<= 10 s", seconds <= MOST_SECONDS))
    memory = largest["peak_bytes"]
    rows.append(
        Row("memory of the largest", f"{memory / 2**30:.2f} GiB", "", "<= 2 GiB", memory <= MOST_BYTES)
    )
    return Result(title="Straggler diagnosis by size", rows=tuple(rows), samples={"sizes": samples})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
