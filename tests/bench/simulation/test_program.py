"""The order of operations in a simulated step, and when they end, held against sums done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bench.simulation.job import Job, SimulatedJob, simulate
from bench.simulation.program import JobShape, Transfer, in_order, one_forward_one_backward, plan
from bench.simulation.workload import Fault, Noise, Workload
from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.operations.table import Kind, OperationTable


def order(stage: int, stages: int, microbatches: int) -> str:
    return " ".join(
        f"{operation[0].upper()}{microbatch}"
        for operation, microbatch in one_forward_one_backward(stage, stages, microbatches)
    )


def test_schedule() -> None:
    """One forward, one backward after the warm-up: the figure of the paper with four stages."""
    assert order(0, 4, 4) == "F0 F1 F2 F3 B0 B1 B2 B3"
    assert order(1, 4, 4) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert order(2, 4, 4) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert order(3, 4, 4) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_schedule_of_few_microbatches() -> None:
    """The first stages run all forwards first."""
    assert order(0, 4, 2) == "F0 F1 B0 B1"


def test_turns() -> None:
    """Every operation has one, and every message is sent before it is received."""
    program = plan(JobShape(data_parallel=2, pipeline_parallel=4, tensor_parallel=2, microbatches=6))
    turns = in_order(program)
    assert sorted(turns) == [
        (stage, index) for stage, each in enumerate(program) for index in range(len(each))
    ]
    sent = set()
    for stage, index in turns:
        planned = program[stage][index]
        if planned.transfer is Transfer.SEND:
            sent.add(planned.message)
        if planned.transfer is Transfer.RECEIVE:
            sent.remove(planned.message)
    assert not sent


def test_world_turns() -> None:
    """The turns of the job-wide collective follow each other."""
    program = plan(JobShape(data_parallel=1, pipeline_parallel=3, microbatches=2))
    transfers = [program[stage][index].transfer for stage, index in in_order(program)]
    first = transfers.index(Transfer.WORLD)
    assert transfers[first : first + 3] == [Transfer.WORLD] * 3
    assert transfers.count(Transfer.WORLD) == 3


def test_single_rank() -> None:
    """It does not communicate."""
    (stage,) = plan(JobShape(data_parallel=1))
    assert {each.transfer for each in stage} == {Transfer.NONE}


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
