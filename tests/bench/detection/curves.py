"""`python -m tests.bench.detection.curves`: how often a slow rank is found, by its size and by the chips.

Jobs as in production with one rank that computes slowly in all steps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bench.simulation.job import REAL_RECORDER
from bench.simulation.workload import Fault
from rankwatch.conventions.states import Cause

from ..processes import in_processes
from ..result import Result, Row, as_markdown
from .judging import Judged, judge_job
from .production import CHIP_SIGMAS, SHAPES, healthy

SIZES = (0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.4)
"""By how much the rank is slower."""
LARGE = 0.08
LEAST_RECALL = 0.9
"""Of faults of at least LARGE."""
_LEAST_REPLICAS = 4


class Tried(NamedTuple):
    """One job of the grid."""

    chip_sigma: float
    size: float
    judged: Judged


def main(arguments: Sequence[str]) -> int:
    """Judge the grid of jobs and print a table. Exit status 0 whatever the result is."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.detection.curves", description="Recall by size of fault and chips."
    )
    parser.add_argument("--jobs", type=int, default=25, metavar="N", help="of each size (default 25)")
    parser.add_argument("--seed-base", type=int, default=1, metavar="S", help="other jobs (default 1)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="default 2")
    given = parser.parse_args(arguments)
    grid = [
        (sigma, size, number, given.seed_base)
        for sigma in CHIP_SIGMAS
        for size in SIZES
        for number in range(given.jobs)
    ]
    tried = in_processes(attempt, grid, given.processes)
    print(as_markdown(_result(tried)), flush=True)
    return 0


def attempt(chip_sigma: float, size: float, number: int, seed_base: int) -> Tried:
    """Judge one job. Jobs of one number differ in size and chips only, not in shape or chance."""
    random = np.random.default_rng([seed_base, number, 12])
    job = healthy(random, chip_sigma, [each for each in SHAPES if each[0] >= _LEAST_REPLICAS])
    shape = job.shape
    rank = shape.tensor_parallel * int(random.integers(shape.ranks // shape.tensor_parallel))
    recorder = replace(
        REAL_RECORDER,
        fuzz_seconds=job.recorder.fuzz_seconds,
        launch_seconds=job.recorder.launch_seconds,
    )
    fault = Fault(cause=Cause.SLOW_RANK, ranks=(rank,), factor=1.0 + size)
    return Tried(chip_sigma, size, judge_job(replace(job, fault=fault, recorder=recorder), number, "curve"))


def recall(tried: Sequence[Tried]) -> float:
    """Share of the slow ranks that are in the list of causes, whatever they cost."""
    return sum(each.judged.all_found for each in tried) / max(1, len(tried))


def by_chips(tried: Sequence[Tried]) -> Mapping[float, list[float]]:
    """Recall at each of SIZES, by spread of the chips."""
    return {
        sigma: [
            recall([each for each in tried if (each.chip_sigma, each.size) == (sigma, size)])
            for size in SIZES
        ]
        for sigma in CHIP_SIGMAS
    }


def _result(tried: Sequence[Tried]) -> Result:
    rows = [_row(sigma, values, tried) for sigma, values in by_chips(tried).items()]
    large = [each for each in tried if each.size >= LARGE]
    found = recall(large)
    rows.append(
        Row(
            f"recall at {LARGE:.0%} or more",
            f"{found:.1%}",
            f"{len(large)} jobs",
            f">= {LEAST_RECALL:.0%}",
            found >= LEAST_RECALL,
        )
    )
    sizes = ", ".join(f"{size:.0%}" for size in SIZES)
    return Result(title=f"Recall of a rank that is slower by {sizes}", rows=tuple(rows))


def _row(sigma: float, values: Sequence[float], tried: Sequence[Tried]) -> Row:
    own = [each for each in tried if each.chip_sigma == sigma]
    innocents = sum(len(each.judged.innocents) for each in own)
    return Row(
        f"chips differ by {sigma:.1%}",
        ", ".join(f"{value:.0%}" for value in values),
        f"{innocents} innocents in {len(own)} jobs",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
