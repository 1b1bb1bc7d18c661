"""The step of a Megatron job: its order, who waits for whom in it, and what a stall of a rank costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.simulation.job import Job, simulate
from bench.simulation.program import Barrier, JobShape, Megatron, Transfer, in_order
from bench.simulation.recorder import Recorder
from bench.simulation.workload import Fault, Noise, Workload, production_workload
from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import OperationTable

SILENT = Noise(
    **dict.fromkeys(
        (
            *("sigma", "communication_sigma", "host_sigma", "rank_sigma", "drift_sigma"),
            *("outlier_probability", "clock_sigma_seconds"),
        ),
        0.0,
    )
)
PASSES_ONLY = Workload(
    **dict.fromkeys(
        (
            *("first_stage_extra", "last_stage_extra", "optimizer_seconds", "data_seconds", "host_seconds"),
            *("send_seconds", "tensor_seconds", "gradient_seconds", "norm_seconds", "embedding_seconds"),
            *("layernorm_seconds", "clip_seconds", "prepare_seconds"),
        ),
        0.0,
    ),
    forward_seconds=1.0,
)
SHAPE = JobShape(data_parallel=2, pipeline_parallel=4, microbatches=8)
JOB = Job(shape=SHAPE, workload=PASSES_ONLY, noise=SILENT, megatron=Megatron(), steps=3)


def rows_of(table: OperationTable, operation: str, rank: int) -> np.ndarray:
    """Of one step."""
    own = (table.operation == table.operations.index(operation)) & (table.rank == rank)
    return np.flatnonzero(own & (table.step == table.step.max()))


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 4), (2, 2), (3, 2), (4, 8), (8, 16)])
def test_pipeline_bubble(stages: int, microbatches: int) -> None:
    """Without transfers a step takes what the pipeline takes that hands messages over without waiting."""
    shape = JobShape(data_parallel=2, pipeline_parallel=stages, microbatches=microbatches)
    done = simulate(replace(JOB, shape=shape))
    assert done.step_seconds == pytest.approx([3.0 * (microbatches + stages - 1)] * 3)


@pytest.mark.parametrize("barriers", [(), tuple(Barrier), (Barrier.FIRST_REPLICA,)])
def test_program_can_be_run(barriers: tuple[Barrier, ...]) -> None:
    """Every operation has a turn: no batch waits for one that waits for it."""
    program = Megatron(barriers=barriers).plan(SHAPE)
    assert sorted(in_order(program)) == [
        (stage, index) for stage, each in enumerate(program) for index in range(len(each))
    ]


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
    table = simulate(replace(JOB, fault=slow)).table
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
    assert sorted(set(table.rank[table.operation == table.operations.index("barrier")])) == sorted(
        rank for group in groups for rank in group
    )
    for group in groups:
        rows = np.concatenate([rows_of(table, "barrier", rank) for rank in group])
        ends = table.start_seconds[rows] + table.duration_seconds[rows]
        assert ends == pytest.approx(table.start_seconds[rows].max())


def test_unrecorded_stall() -> None:
    """It costs the step what it lasts, and no row is longer but those of the ranks that wait."""
    fault = Fault(cause=Cause.SLOW_RANK, phase=SlowPhase.OTHER, ranks=(2,), factor=1.25, unrecorded=True)
    done = simulate(replace(JOB, fault=fault, recorder=Recorder(hides_waits=True)))
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
    done = simulate(replace(JOB, workload=production_workload(0.1)))
    assert 3.3 < done.step_seconds[0] < 4.0
