"""Durations propagated along dependencies, held against sums done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.simulation.fault import Fault
from rankwatch_diagnosis.simulation.job import Job, SimulatedJob, simulate
from rankwatch_diagnosis.simulation.shape import JobShape
from rankwatch_diagnosis.simulation.workload import Noise, Workload

SILENT = Noise(
    drift_sigma=0,
    sigma=0,
    communication_sigma=0,
    host_sigma=0,
    rank_sigma=0,
    outlier_probability=0,
    clock_sigma_seconds=0,
)
COMPUTE_ONLY = Workload(
    forward_seconds=1.0,
    first_stage_extra=0.0,
    last_stage_extra=0.0,
    optimizer_seconds=0.0,
    data_seconds=0.0,
    host_seconds=0.0,
    send_seconds=0.0,
    tensor_seconds=0.0,
    gradient_seconds=0.0,
    norm_seconds=0.0,
)


def run(shape: JobShape, fault: Fault | None = None, workload: Workload = COMPUTE_ONLY) -> SimulatedJob:
    return simulate(Job(shape=shape, workload=workload, noise=SILENT, fault=fault or Fault(), steps=3))


def rows(table: OperationTable, operation: str) -> np.ndarray:
    return table.operation == table.operations.index(operation)


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 4), (2, 2), (4, 8), (8, 8)])
def test_pipeline_bubble(stages: int, microbatches: int) -> None:
    """A step takes (microbatches + stages - 1) x (forward + backward), here of 1 + 2 seconds."""
    done = run(JobShape(data_parallel=2, pipeline_parallel=stages, microbatches=microbatches))
    assert done.step_seconds == pytest.approx([3.0 * (microbatches + stages - 1)] * 3)


def test_wait_for_the_slowest_replica() -> None:
    """Four microbatches of 3 s, at 1.5 on one rank: the step takes 18 s, of which the others wait 6."""
    fault = Fault(cause=Cause.SLOW_RANK, ranks=(2,), factor=1.5)
    done = run(JobShape(data_parallel=4, microbatches=4), fault)
    assert done.step_seconds == pytest.approx([18.0] * 3)
    reduce = rows(done.table, "all_reduce") & (done.table.step == 1)
    waits = dict(
        zip(done.table.rank[reduce].tolist(), done.table.duration_seconds[reduce].tolist(), strict=True)
    )
    assert waits == pytest.approx({0: 6.0, 1: 6.0, 2: 0.0, 3: 6.0})


def test_collectives_end_together() -> None:
    """In tensor-parallel and data-parallel groups, under noise."""
    job = Job(
        shape=JobShape(data_parallel=4, pipeline_parallel=2, tensor_parallel=2),
        noise=Noise(clock_sigma_seconds=0),
        steps=3,
    )
    table = simulate(job).table
    ends = table.start_seconds + table.duration_seconds
    reduce = rows(table, "all_reduce")
    names = np.array(table.groups)[table.group]
    for name in sorted({*names[reduce]}):
        members = reduce & (names == name)
        per_rank = [np.sort(ends[members & (table.rank == rank)]) for rank in {*table.rank[members]}]
        assert all(np.allclose(per_rank[0], each) for each in per_rank), name
        assert len(per_rank) == {"t": 2, "d": 4, "w": 16}[name[0]]


def test_messages() -> None:
    """The end of a receive is never before the end of its send."""
    job = Job(
        shape=JobShape(data_parallel=2, pipeline_parallel=2), noise=Noise(clock_sigma_seconds=0), steps=2
    )
    table = simulate(job).table
    ends = table.start_seconds + table.duration_seconds
    for rank, peer in ((0, 2), (2, 0), (1, 3), (3, 1)):
        sent = np.sort(ends[rows(table, "send") & (table.rank == rank)])
        received = np.sort(ends[rows(table, "recv") & (table.rank == peer)])
        assert len(sent) == len(received) == 8
        assert (received >= sent - 1e-9).all()  # a duration was rounded in between


def test_operations_of_a_rank() -> None:
    """Each one starts where the one before it ended: no gap, no overlap."""
    job = Job(
        shape=JobShape(data_parallel=2, pipeline_parallel=2, tensor_parallel=2),
        noise=Noise(clock_sigma_seconds=0),
        steps=3,
    )
    table = simulate(job).table
    for rank in range(8):
        own = np.flatnonzero(table.rank == rank)
        own = own[
            np.lexsort((table.start_seconds[own] + table.duration_seconds[own], table.start_seconds[own]))
        ]
        ends = table.start_seconds[own] + table.duration_seconds[own]
        assert np.allclose(table.start_seconds[own][1:], ends[:-1])


def test_columns() -> None:
    """Stage and replica follow from the rank, and only communication has a group."""
    shape = JobShape(data_parallel=4, pipeline_parallel=2, tensor_parallel=2)
    table = run(shape).table
    places = {
        (int(rank), int(stage), int(replica))
        for rank, stage, replica in zip(table.rank, table.stage, table.replica, strict=True)
    }
    assert places == {(rank, *shape.place(rank)[:2]) for rank in range(16)}
    assert ((table.group > 0) == (table.kind == Kind.COMMUNICATION)).all()
    assert set(np.array(table.groups)[table.group].tolist()) == set(table.groups)
