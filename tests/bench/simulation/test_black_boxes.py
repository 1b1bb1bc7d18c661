"""Simulated black boxes hold the same truth as the table and the dumps of their job."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.simulation.black_boxes import write_job_boxes
from bench.simulation.hang import HangFault, HangKind, Plane
from bench.simulation.hang_job import HangJob, simulate_hang, write_hang_boxes, write_snapshots
from bench.simulation.job import Job, simulate
from bench.simulation.program import JobShape
from bench.simulation.workload import Fault
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.hang.dump_files import read_source
from rankwatch_diagnosis.hang.engine import diagnose as diagnose_hang
from rankwatch_diagnosis.run.boxes import Boxes, read_boxes
from rankwatch_diagnosis.run.folder import find_run
from rankwatch_diagnosis.run.operation_table import operation_table
from rankwatch_diagnosis.run.step_rows import rows_by_rank
from rankwatch_diagnosis.run.waiting import Recorders, judge_waiting
from rankwatch_diagnosis.straggler.engine import diagnose
from support.training.blackbox import of_kind

_MESH = JobShape(data_parallel=4, pipeline_parallel=2, tensor_parallel=2)
_FAULTS = {
    "none": Fault(),
    "worker": Fault(cause=Cause.SLOW_RANK, ranks=(5,), factor=1.3, first_step=8),
    "stage": Fault(cause=Cause.SLOW_STAGE, stage=1, factor=1.5),
    "data": Fault(cause=Cause.UNEQUAL_BATCHES, factor=1.5),
    "network": Fault(cause=Cause.NETWORK, factor=3.0, first_step=12),
    "data loading": Fault(cause=Cause.SLOW_RANK, phase=SlowPhase.DATA_LOADING, ranks=(2,), factor=20.0),
    "other": Fault(cause=Cause.SLOW_RANK, phase=SlowPhase.OTHER, ranks=(2,), factor=20.0),
}


def boxes_of(directory: Path) -> Boxes:
    folder = find_run(directory)
    return read_boxes(folder.boxes, copied=None)


@pytest.mark.parametrize("fault", _FAULTS.values(), ids=_FAULTS.keys())
@pytest.mark.parametrize("shape", [JobShape(data_parallel=8), _MESH], ids=["data parallel", "mesh"])
def test_boxes_and_table_agree(fault: Fault, shape: JobShape, tmp_path: Path) -> None:
    """Cause, ranks and stages agree, and nearly the cost: the first step of a process is left out."""
    if fault.cause is Cause.SLOW_STAGE and shape.pipeline_parallel == 1:
        fault = Fault()
    job = simulate(Job(shape=shape, fault=fault, steps=24, seed=3, with_work=True))
    write_job_boxes(job.table, shape, tmp_path, run="job", seed=3)
    boxes = boxes_of(tmp_path)
    by_table, by_boxes = diagnose(job.table), diagnose(operation_table(boxes, rows_by_rank(boxes)))
    assert (by_boxes.cause, by_boxes.phase, by_boxes.ranks, by_boxes.stages) == (
        by_table.cause,
        by_table.phase,
        by_table.ranks,
        by_table.stages,
    )
    assert by_boxes.cause is fault.cause
    assert by_boxes.slowdown == pytest.approx(by_table.slowdown, abs=0.03)


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "plane"),
    [
        (HangKind.NONE, Plane.DATA),
        (HangKind.SLEEP, Plane.DATA),
        (HangKind.SLEEP, Plane.PIPELINE),
        (HangKind.KILLED, Plane.WORLD),
        (HangKind.STUCK_DATA, Plane.DATA),
        (HangKind.SKIP, Plane.TENSOR),
        (HangKind.OTHER_OPERATION, Plane.DATA),
    ],
)
def test_boxes_and_dumps_agree(kind: HangKind, plane: Plane, tmp_path: Path) -> None:
    """State and ranks agree. A box holds no sizes, so a wrong size is left to the dumps."""
    job = HangJob(shape=_MESH, fault=HangFault(kind=kind, ranks=(6,), plane=plane))
    hang = simulate_hang(job)
    write_hang_boxes(hang, job, tmp_path / "boxes", run="job")
    write_snapshots(hang.snapshots, tmp_path / "dumps", "json")
    by_dumps = diagnose_hang(read_source(tmp_path / "dumps").snapshots)
    boxes = boxes_of(tmp_path / "boxes")
    by_boxes = judge_waiting(boxes, Recorders(), stall=30.0, complete=True)
    assert (by_boxes.state, by_boxes.ranks) == (by_dumps.state, by_dumps.ranks)
    assert by_boxes.ranks == (() if kind is HangKind.NONE else (6,))


def test_wrong_size_is_not_in_boxes(tmp_path: Path) -> None:
    """All ranks enqueued the operation and none goes on, so nobody is named."""
    job = HangJob(shape=JobShape(data_parallel=4), fault=HangFault(kind=HangKind.OTHER_SIZE, ranks=(2,)))
    write_hang_boxes(simulate_hang(job), job, tmp_path, run="job")
    found = judge_waiting(boxes_of(tmp_path), Recorders(), stall=30.0, complete=True)
    assert (found.state.value, found.ranks) == ("inconclusive", ())
    assert found.evidence["arrived_by_all"]


def test_boxes_are_reproducible(tmp_path: Path) -> None:
    """A seed gives the same bytes: clocks and process ids are simulated, too."""
    shape = JobShape(data_parallel=2)
    for name in ("one", "two"):
        job = simulate(Job(shape=shape, steps=4, seed=5))
        write_job_boxes(job.table, shape, tmp_path / name, run="job", seed=5)
    one, two = ((tmp_path / name / "job" / "1.blackbox").read_bytes() for name in ("one", "two"))
    assert one == two
    assert len(of_kind(tmp_path / "one" / "job" / "1.blackbox", RecordKind.STEP)) == 4
