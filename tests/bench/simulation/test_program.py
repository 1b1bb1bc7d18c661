"""The step of a simulated job: its order, who waits for whom in it, and sums done by hand.

Held for the clean model and for the step of Megatron.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.simulation.job import Job, SimulatedJob, simulate
from bench.simulation.program import (
    Barrier,
    JobShape,
    Megatron,
    Program,
    Transfer,
    in_order,
    one_forward_one_backward,
    plan,
)
from bench.simulation.recorder import Recorder
from bench.simulation.workload import NO_NOISE, PASSES_ONLY, Fault, Noise, production_workload
from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind, OperationTable

SHAPE = JobShape(data_parallel=2, pipeline_parallel=4, microbatches=8)
MESH = JobShape(data_parallel=4, pipeline_parallel=2, tensor_parallel=2)
JOB = Job(shape=SHAPE, workload=PASSES_ONLY, noise=NO_NOISE, steps=3)
MEGATRON = replace(JOB, megatron=Megatron())
CLEAN_AND_MEGATRON = pytest.mark.parametrize("megatron", [None, Megatron()], ids=["clean", "megatron"])


@pytest.mark.parametrize(
    ("stage", "microbatches", "order"),
    [
        (0, 4, "F0 F1 F2 F3 B0 B1 B2 B3"),
        (1, 4, "F0 F1 F2 B0 F3 B1 B2 B3"),
        (2, 4, "F0 F1 B0 F2 B1 F3 B2 B3"),
        (3, 4, "F0 B0 F1 B1 F2 B2 F3 B3"),
        (0, 2, "F0 F1 B0 B1"),
    ],
)
def test_schedule(stage: int, microbatches: int, order: str) -> None:
    """One forward, one backward after the warm-up: the figure of the paper with four stages."""
    found = one_forward_one_backward(stage, 4, microbatches)
    assert " ".join(f"{operation[0].upper()}{microbatch}" for operation, microbatch in found) == order


@pytest.mark.parametrize(
    "program",
    [
        plan(replace(SHAPE, tensor_parallel=2)),
        *(Megatron(barriers=each).plan(SHAPE) for each in ((), tuple(Barrier), (Barrier.FIRST_REPLICA,))),
    ],
    ids=["clean", "no barrier", "all barriers", "barrier of a replica"],
)
def test_turns(program: Program) -> None:
    """Every operation has one: none waits for one that waits for it, and no message comes before it goes."""
    turns = in_order(program)
    assert sorted(turns) == [
        (stage, index) for stage, each in enumerate(program) for index in range(len(each))
    ]
    planned = [program[stage][index] for stage, index in turns]
    sent = [each.message for each in planned if each.transfer is Transfer.SEND]
    received = [each.message for each in planned if each.transfer is Transfer.RECEIVE]
    assert set(sent) == set(received)
    world = [each.transfer is Transfer.WORLD for each in planned]
    assert all(world[world.index(True) :][: len(program)]), "the turns of a collective follow each other"


def test_single_rank() -> None:
    """It does not communicate."""
    (stage,) = plan(JobShape(data_parallel=1))
    assert {each.transfer for each in stage} == {Transfer.NONE}


@CLEAN_AND_MEGATRON
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 4), (2, 2), (3, 2), (4, 8), (8, 16)])
def test_pipeline_bubble(stages: int, microbatches: int, megatron: Megatron | None) -> None:
    """A step takes (microbatches + stages - 1) x (forward + backward), here of 1 + 2 seconds."""
    shape = JobShape(data_parallel=2, pipeline_parallel=stages, microbatches=microbatches)
    done = simulate(replace(JOB, shape=shape, megatron=megatron))
    assert done.step_seconds == pytest.approx([3.0 * (microbatches + stages - 1)] * 3)


def rows(table: OperationTable, operation: str) -> np.ndarray:
    return table.operation == table.operations.index(operation)


def rows_of(table: OperationTable, operation: str, rank: int) -> np.ndarray:
    """Of one step."""
    return np.flatnonzero(rows(table, operation) & (table.rank == rank) & (table.step == table.step.max()))


def test_wait_for_the_slowest_replica() -> None:
    """Four microbatches of 3 s, at 1.5 on one rank: the step takes 18 s, of which the others wait 6."""
    fault = Fault(cause=Cause.SLOW_RANK, ranks=(2,), factor=1.5)
    done = simulate(replace(JOB, shape=JobShape(data_parallel=4, microbatches=4), fault=fault))
    assert done.step_seconds == pytest.approx([18.0] * 3)
    waits = [done.table.duration_seconds[rows_of(done.table, "all_reduce", rank)].sum() for rank in range(4)]
    assert waits == pytest.approx([6.0, 6.0, 0.0, 6.0])


def noisy(shape: JobShape) -> SimulatedJob:
    """Three steps by one clock."""
    return simulate(Job(shape=shape, noise=Noise(clock_sigma_seconds=0), steps=3))


def test_collectives_end_together() -> None:
    """In tensor-parallel and data-parallel groups, under noise."""
    table = noisy(MESH).table
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
    table = noisy(JobShape(data_parallel=2, pipeline_parallel=2)).table
    ends = table.start_seconds + table.duration_seconds
    for rank, peer in ((0, 2), (2, 0), (1, 3), (3, 1)):
        sent = np.sort(ends[rows(table, "send") & (table.rank == rank)])
        received = np.sort(ends[rows(table, "recv") & (table.rank == peer)])
        assert len(sent) == len(received) == 12
        assert (received >= sent - 1e-9).all()  # a duration was rounded in between


def test_operations_of_a_rank() -> None:
    """Each one starts where the one before it ended: no gap, no overlap."""
    table = noisy(MESH).table
    ends = table.start_seconds + table.duration_seconds
    for rank in range(MESH.ranks):
        own = np.flatnonzero(table.rank == rank)
        own = own[np.lexsort((ends[own], table.start_seconds[own]))]
        assert np.allclose(table.start_seconds[own][1:], ends[own][:-1])


def test_columns() -> None:
    """Stage and replica follow from the rank, and only communication has a group."""
    table = simulate(replace(JOB, shape=MESH)).table
    places = set(zip(table.rank.tolist(), table.stage.tolist(), table.replica.tolist(), strict=True))
    assert places == {(rank, *MESH.place(rank)[:2]) for rank in range(16)}
    assert ((table.group > 0) == (table.kind == Kind.COMMUNICATION)).all()
    assert set(np.array(table.groups)[table.group].tolist()) == set(table.groups)


def test_batches() -> None:
    """In the steady state a batch sends one way and receives the other: here most messages are in one."""
    program = Megatron().plan(SHAPE)
    exchanges = [each for stage in program for each in stage if each.transfer is Transfer.EXCHANGE]
    both = [each for each in exchanges if each.message and each.received]
    assert all(each.message.operation != each.received.operation for each in both)  # type: ignore[union-attr]
    messages = sum(bool(each.message) + bool(each.received) for each in exchanges)
    assert messages == 2 * 2 * 3 * 8
    assert 0.5 < 2 * len(both) / messages < 0.94


def test_batch_waits_for_both_neighbours() -> None:
    """A send ends when its receiver has come: stage 2 is held up by the stage before it, which is slow."""
    slow = Fault(cause=Cause.SLOW_STAGE, stage=1, factor=2.0)
    table = simulate(replace(MEGATRON, fault=slow)).table
    sends = rows_of(table, "send", SHAPE.rank(2, 0, 0))
    assert table.duration_seconds[sends].max() == pytest.approx(3.0)  # until the slow neighbour is free


@pytest.mark.parametrize(
    ("barrier", "groups"),
    [
        (Barrier.LAST_STAGE, [(6, 7)]),
        (Barrier.FIRST_REPLICA, [(0, 2, 4, 6), (1,), (3,), (5,), (7,)]),
        (Barrier.REPLICA, [(0, 2, 4, 6), (1, 3, 5, 7)]),
        (Barrier.JOB, [tuple(range(8))]),
    ],
)
def test_barriers(barrier: Barrier, groups: list[tuple[int, ...]]) -> None:
    """Its members go on when the last one has come, and nobody else waits."""
    slow = Fault(cause=Cause.SLOW_RANK, ranks=(1,), factor=1.5)
    table = simulate(replace(JOB, fault=slow, megatron=Megatron(barriers=(barrier,)))).table
    assert set(table.rank[rows(table, "barrier")]) == {rank for group in groups for rank in group}
    for group in groups:
        own = np.concatenate([rows_of(table, "barrier", rank) for rank in group])
        ends = table.start_seconds[own] + table.duration_seconds[own]
        assert ends == pytest.approx(table.start_seconds[own].max())


def test_unrecorded_stall() -> None:
    """It costs the step what it lasts, and no row is longer but those of the ranks that wait."""
    fault = Fault(cause=Cause.SLOW_RANK, phase=SlowPhase.OTHER, ranks=(2,), factor=1.25, unrecorded=True)
    done = simulate(replace(MEGATRON, fault=fault, recorder=Recorder(hides_waits=True)))
    assert done.step_seconds == pytest.approx([33.0 + 6.0] * 3)  # a quarter of 8 x (1 + 2) seconds
    assert (done.truth.phase, done.truth.ranks) == (SlowPhase.OTHER, (2,))
    table = done.table
    own = np.flatnonzero((table.rank == 2) & (table.step == 1))
    own = own[np.argsort(table.start_seconds[own], kind="stable")]
    ends = table.start_seconds[own] + table.duration_seconds[own]
    gaps = table.start_seconds[own][1:] - np.maximum.accumulate(ends)[:-1]
    assert gaps.max() == pytest.approx(6.0)


def test_production_workload() -> None:
    """A step is mostly compute, as in the jobs whose proportions it has."""
    done = simulate(replace(MEGATRON, workload=production_workload(0.1)))
    assert 3.3 < done.step_seconds[0] < 4.0
