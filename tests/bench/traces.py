"""The profiler's traces of 8 ranks at 100 MB each, by the real command: seconds, memory, and whom it names.

They are of a job on GPUs with a slow rank, as Kineto writes them: kernels, launches, flows, operators and the
stacks of Python that make up most of a file. `--megabytes 500` is the size of a long window.
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
from typing import NamedTuple

from support.diagnosis.kineto import GpuJob, TraceForm, write_traces

from .process_usage import footprint
from .result import BenchError, Result, Row, as_markdown

_MEGABYTE = 1_000_000
_MOST_SECONDS = 20.0
_MOST_BYTES = 1 << 30
_SAMPLE_SECONDS = 0.1
_SLOW_RANK = 5
_COMMAND = (sys.executable, "-m", "rankwatch_cli", "diagnose", "trace", "--json")


class _Run(NamedTuple):
    seconds: float
    cpu_seconds: float
    """Of the command and its processes together."""
    peak_bytes: int
    """Of the command and its processes together, sampled; pages that they share count once."""
    verdict: dict[str, object]


def measure(*, quick: bool) -> Result:
    """At full size, or at a twentieth of it in the short form."""
    return diagnose(5 if quick else 100, packed=False)


def diagnose(megabytes: int, *, packed: bool, ranks: int = 8) -> Result:
    """Write the traces and diagnose them."""
    with tempfile.TemporaryDirectory(prefix="rankwatch-traces-") as name:
        directory = Path(name)
        paths = write_traces(directory, job(megabytes, ranks), TraceForm(padding=6), packed=packed)
        size = sum(each.stat().st_size for each in paths)
        run = _run(directory)
    right = run.verdict["ranks"] == [_SLOW_RANK]
    evidence = run.verdict["evidence"]
    assert isinstance(evidence, dict)
    rows = (
        Row(
            "rankwatch diagnose trace",
            f"{run.seconds:.1f} s",
            target=f"<= {_MOST_SECONDS:.0f} s",
            met=run.seconds <= _MOST_SECONDS,
        ),
        Row("CPU time of all its processes", f"{run.cpu_seconds:.1f} s"),
        Row(
            "memory of all its processes, at most",
            f"{run.peak_bytes >> 20} MiB",
            target=f"<= {_MOST_BYTES >> 20} MiB",
            met=run.peak_bytes <= _MOST_BYTES,
        ),
        Row("read in a second", f"{size / _MEGABYTE / run.seconds:.0f} MB"),
        Row("events", f"{evidence['traces']['events']:,}"),
        Row("the slow rank is named, and no other", "yes" if right else "no", target="yes", met=right),
    )
    form = "gzip" if packed else "plain JSON"
    return Result(
        title=f"Traces of {ranks} ranks, {size / ranks / _MEGABYTE:.0f} MB each, {form}",
        rows=rows,
        notes=("Wall-clock time of the whole command, its start included.",),
        samples={
            "seconds": run.seconds,
            "cpu_seconds": run.cpu_seconds,
            "peak_bytes": run.peak_bytes,
            "bytes": size,
        },
    )


def job(megabytes: int, ranks: int) -> GpuJob:
    """A job whose traces have about that size: a kernel with its launch and stacks takes 2.5 kB."""
    kernels = 60
    of_step = kernels * 3 + kernels // 3
    steps = max(4, round(megabytes * _MEGABYTE / (2_510 * of_step)))
    return GpuJob(ranks=ranks, steps=steps, kernels=kernels, kernel=40.0, slow={_SLOW_RANK: 1.2})


def _run(directory: Path) -> _Run:
    """Raises BenchError if the command fails."""
    with tempfile.TemporaryFile("w+") as output:
        began, used = time.perf_counter(), _cpu_seconds_of_children()
        process = subprocess.Popen((*_COMMAND, str(directory)), stdout=output, stderr=subprocess.STDOUT)
        peak = 0
        while process.poll() is None:
            try:
                peak = max(peak, footprint(process.pid).proportional_bytes)
            except BenchError:
                break  # it has just ended
            time.sleep(_SAMPLE_SECONDS)
        process.wait()
        seconds = time.perf_counter() - began
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise BenchError(f"{' '.join(_COMMAND)} ended with status {process.returncode}: {text[-300:]}")
    return _Run(seconds, _cpu_seconds_of_children() - used, peak, json.loads(text))


def _cpu_seconds_of_children() -> float:
    """Of those that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(arguments: Sequence[str]) -> int:
    """Print the table. Exit status 0 whatever the result is."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.traces", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100, help="of each rank (default 100)")
    parser.add_argument("--packed", action="store_true", help="under gzip")
    given = parser.parse_args(arguments)
    print(as_markdown(diagnose(given.megabytes, packed=given.packed)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
