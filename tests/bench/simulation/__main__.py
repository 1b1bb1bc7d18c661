"""`python -m tests.bench.simulation DIR`: write the jobs of the documents, each with its known fault.

Each folder of DIR holds a table of operations or flight-recorder dumps, and black boxes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.simulation.black_boxes import write_job_boxes
from bench.simulation.hang import HangFault, HangKind
from bench.simulation.hang_job import HangJob, simulate_hang, write_hang_boxes, write_snapshots
from bench.simulation.job import Job, simulate
from bench.simulation.program import JobShape
from bench.simulation.workload import Fault
from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.operations.writing import write_table

_SMALL = JobShape(data_parallel=4)
JOBS = {
    "slow": Job(
        shape=JobShape(pipeline_parallel=2, microbatches=8),
        fault=Fault(cause=Cause.SLOW_RANK, ranks=(11,), factor=1.08, first_step=15),
    ),
    "small": Job(
        shape=JobShape(data_parallel=4, pipeline_parallel=2),
        fault=Fault(cause=Cause.SLOW_RANK, ranks=(5,), factor=1.2, first_step=15),
    ),
    "yesterday": Job(shape=_SMALL, steps=200, seed=1, with_work=True),
    "today": Job(
        shape=_SMALL,
        fault=Fault(cause=Cause.SLOW_RANK, ranks=(1,), factor=1.3),
        steps=200,
        seed=3,
        with_work=True,
    ),
}
STUCK = HangJob(
    shape=JobShape(pipeline_parallel=2, tensor_parallel=2),
    fault=HangFault(kind=HangKind.SKIP, ranks=(24,)),
    steps=40,
)


def main() -> None:
    """Write them all."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.simulation", description=__doc__)
    parser.add_argument("output", type=Path, metavar="DIR")
    output: Path = parser.parse_args().output
    for name, job in JOBS.items():
        table = simulate(job).table
        write_job_boxes(table, job.shape, output / name, run="simulated", seed=job.seed)
        write_table(table, output / name / "operations.csv", "csv")
    hang = simulate_hang(STUCK)
    write_hang_boxes(hang, STUCK, output / "stuck", run="simulated")
    write_snapshots(hang.snapshots, output / "stuck" / "flight_recorder", "pickle")


if __name__ == "__main__":
    main()
