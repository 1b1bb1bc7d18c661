"""What a recorder makes of a run: rows, names, ranks, steps and clocks, beside the exact recorder's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.simulation.job import REAL_RECORDER, Job, Level, at_level, simulate
from bench.simulation.program import JobShape
from bench.simulation.recorder import EXACT
from bench.simulation.workload import Fault
from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.operations.reading import read_operations
from rankwatch_diagnosis.operations.table import Kind, OperationTable
from support.paths import RECORDED

SHAPE = JobShape(data_parallel=2, pipeline_parallel=4, tensor_parallel=2, microbatches=8)
JOB = replace(at_level(Job(shape=SHAPE, steps=6, seed=3), Level.REAL), recorder=EXACT)
REAL = replace(JOB, recorder=REAL_RECORDER)
MESSAGES = ("forward-send", "forward-recv", "backward-send", "backward-recv")


def shown(table: OperationTable, *names: str) -> np.ndarray:
    """Rows of these operations."""
    return np.isin(table.operation, [table.operations.index(name) for name in names])


def columns(table: OperationTable, rows: np.ndarray) -> list[tuple[object, ...]]:
    own = table.take(rows)
    return list(zip(own.rank, own.step, own.start_seconds, own.duration_seconds, strict=True))


def test_batches() -> None:
    """Most messages share start and duration with the other message of their batch, as in real jobs."""
    table = simulate(REAL).table
    messages = columns(table, shown(table, *MESSAGES))
    batched = len(messages) - sum(messages.count(each) == 1 for each in messages)
    assert 0.5 < batched / len(messages) < 0.94


def test_hidden_norm() -> None:
    """The clipping holds the wait for the last stage of the job: its ends agree, not its durations."""
    table = simulate(replace(REAL, fault=Fault(cause=Cause.SLOW_STAGE, stage=1, factor=1.3))).table
    clip = shown(table, "optimizer-clip-main-grad") & (table.step == table.step.min())
    assert (table.kind[clip] == Kind.COMPUTE).all()
    assert np.ptp(table.start_seconds[clip] + table.duration_seconds[clip]) < 0.001
    assert np.ptp(table.duration_seconds[clip]) > 0.005
    assert not any("norm" in name and "layernorm" not in name for name in table.operations)


def test_hidden_barrier() -> None:
    """Before the first small all-reduce the last stage waits for the first, in no row."""
    table = simulate(REAL).table
    for rank in np.unique(table.rank[table.stage == 3]):
        own = np.flatnonzero((table.rank == rank) & (table.step == table.step.min()))
        own = own[np.argsort(table.start_seconds[own], kind="stable")]
        ends = np.maximum.accumulate(table.start_seconds[own] + table.duration_seconds[own])
        gaps = dict(zip(table.operation[own][1:], table.start_seconds[own][1:] - ends[:-1], strict=True))
        assert gaps[table.operations.index("layernorm-grads-all-reduce")] > 0.2
    assert "barrier" not in table.operations


def test_clock_fuzz() -> None:
    """Compute rows begin before the row before them has ended, in 11 to 45 % and by at most 0.15 ms."""
    share, most = _early_compute(simulate(REAL).table)
    assert 0.11 < share < 0.45
    assert 0.00005 < most < 0.00015
    exact = replace(REAL, recorder=replace(REAL_RECORDER, fuzz_seconds=0.0))
    assert _early_compute(simulate(exact).table) == (0, 0)


def _early_compute(table: OperationTable) -> tuple[float, float]:
    """The share of compute rows that begin early, and the longest such time."""
    table = table.take(np.lexsort((table.start_seconds, table.rank, table.step)))
    end, compute = table.start_seconds + table.duration_seconds, table.kind == Kind.COMPUTE
    follows = (np.diff(table.rank) == 0) & (np.diff(table.step) == 0) & compute[1:]
    early = np.where(follows, end[:-1] - table.start_seconds[1:], 0.0)
    early[early < 1e-9] = 0.0
    return float((early > 0.0).sum() / compute.sum()), float(early.max())


def test_one_rank_of_each_tensor_group() -> None:
    """Numbers of ranks have gaps. A slow rank that is not recorded shows in the rows of the one that is."""
    slow = Fault(cause=Cause.SLOW_RANK, ranks=(5,), factor=1.5)
    done, healthy = simulate(replace(REAL, fault=slow)), simulate(REAL)
    assert np.unique(done.table.rank).tolist() == list(range(0, 16, 2))
    assert done.truth.ranks == done.truth.causes[0].ranks == (4,)
    forward = shown(done.table, "forward-compute")
    longer = done.table.duration_seconds[forward] / healthy.table.duration_seconds[forward]
    assert longer[done.table.rank[forward] == 4].min() > 1.25
    assert longer[done.table.rank[forward] != 4].max() < 1.01


def test_sampled_steps() -> None:
    """Their numbers have gaps, each begins at zero, and the truth names the number at which a fault began."""
    done = simulate(replace(REAL, fault=Fault(cause=Cause.SLOW_STAGE, stage=2, first_step=3)))
    steps = np.unique(done.table.step)
    assert len(steps) == 6
    assert np.diff(steps).max() > 1
    assert done.truth.first_step == steps[3]
    for step in steps:
        assert abs(done.table.start_seconds[done.table.step == step].min()) < 0.01


@pytest.mark.parametrize("kind", ["send", "recv"])
def test_missing_messages(kind: str) -> None:
    """Sends or receives can be left out; no other row changes."""
    left_out = {f"forward-{kind}", f"backward-{kind}"}
    without = replace(REAL_RECORDER, **{"send": {"sends": False}, "recv": {"receives": False}}[kind])
    table, part = simulate(REAL).table, simulate(replace(REAL, recorder=without)).table
    assert set(table.operations) - set(part.operations) == left_out
    assert columns(part, np.ones(len(part), dtype=bool)) == columns(table, ~shown(table, *left_out))


def test_missing_groups() -> None:
    """No row names its process group."""
    part = simulate(replace(REAL, recorder=replace(REAL_RECORDER, groups=False))).table
    assert part.groups == ("",)


def test_recorder_changes_no_truth() -> None:
    """What is recorded of a run does not change the run."""
    fault = Fault(cause=Cause.SLOW_RANK, ranks=(4,), factor=1.2)
    exact, real = simulate(replace(JOB, fault=fault)), simulate(replace(REAL, fault=fault))
    assert exact.truth.slowdown == real.truth.slowdown
    assert (exact.step_seconds == real.step_seconds).all()


@pytest.mark.parametrize("name", ["job-a.csv.gz", "job-b.csv.gz"])
def test_like_a_real_table(name: str) -> None:
    """Operations, their kinds, and which have a microbatch or a group: all as a real job records them."""
    path = RECORDED / "operation_tables" / name
    if not path.is_file():
        pytest.skip(f"{path} is not on this machine")
    assert _form(simulate(REAL).table) == _form(read_operations(path).table)


def _form(table: OperationTable) -> set[tuple[str, int, bool, bool]]:
    rows = zip(table.operation, table.kind, table.microbatch, table.group, strict=True)
    return {
        (table.operations[operation], int(kind), bool(microbatch >= 0), table.groups[group] != "")
        for operation, kind, microbatch, group in rows
    }
