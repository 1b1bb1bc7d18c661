"""From traces of GPU jobs to verdicts: the faulty rank is named at its true cost, and nobody else ever."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.engine import diagnose
from rankwatch_profiler_traces.reading import TraceTable, read_traces
from support.diagnosis.kineto import GpuJob, Step, TraceForm, compute_job, write_traces
from support.diagnosis.kineto_jobs import (
    PipelineJob,
    ShardedJob,
    pipeline_steps,
    sharded_steps,
    write_pipeline_traces,
    write_sharded_traces,
)


def traces_of(directory: Path, job: GpuJob, form: TraceForm | None = None) -> TraceTable:
    write_traces(directory, job, form)
    return read_traces(directory)


def true_slowdown(job: GpuJob) -> float:
    return end_of(job) / end_of(replace(job, slow={}, host_gap={}, loading={}))


def end_of(job: GpuJob) -> float:
    lines = compute_job(job)
    return max(each.end for steps in lines for each in steps[-1].kernels) - lines[0][0].begin


def sums(table: OperationTable, rank: int) -> Counter[str]:
    seconds: Counter[str] = Counter()
    for row in np.flatnonzero(table.rank == rank):
        seconds[table.operations[table.operation[row]]] += float(table.duration_seconds[row])
    return seconds


FORMS = {
    "plain": TraceForm(),
    "closure": TraceForm(closure=True),
    "stacks": TraceForm(padding=3),
    "kernels-alone": TraceForm(mark_phases=False),
    "without-steps": TraceForm(annotate_steps=False),
    "without-steps-and-phases": TraceForm(annotate_steps=False, mark_phases=False),
    "without-descriptions": TraceForm(describe=False),
    "other-clocks": TraceForm(clocks=(0.0, 3_600.0, -5.0, 0.001)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("blocking", [False, True])
def test_slow_rank(tmp_path: Path, form: str, *, blocking: bool) -> None:
    """A rank with slow kernels is named at its true cost, whatever the profiler was told to record."""
    job = GpuJob(slow={2: 1.3}, blocking=blocking)
    verdict = diagnose(traces_of(tmp_path, job, FORMS[form]).table)
    assert (verdict.cause, verdict.phase, verdict.ranks) == (Cause.SLOW_RANK, SlowPhase.COMPUTE, (2,))
    assert verdict.slowdown - 1.0 == pytest.approx(true_slowdown(job) - 1.0, rel=0.05)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("blocking", [False, True])
def test_healthy_job(tmp_path: Path, form: str, *, blocking: bool) -> None:
    """Nobody is named in a healthy job."""
    verdict = diagnose(traces_of(tmp_path, GpuJob(blocking=blocking), FORMS[form]).table)
    assert (verdict.cause, verdict.ranks, verdict.stages) == (Cause.NONE, (), ())


@pytest.mark.parametrize(
    ("job", "phase"),
    [
        (GpuJob(host_gap={1: 3_000.0}), SlowPhase.OTHER),
        (GpuJob(loading={1: 3_000.0}), SlowPhase.DATA_LOADING),
    ],
)
def test_slow_host(tmp_path: Path, job: GpuJob, phase: SlowPhase) -> None:
    """A GPU without work is its host's doing: the batch where the loader was waited for, else other work."""
    verdict = diagnose(traces_of(tmp_path, job).table)
    assert (verdict.cause, verdict.phase, verdict.ranks) == (Cause.SLOW_RANK, phase, (1,))


@pytest.mark.parametrize("closure", [False, True])
def test_hidden_and_exposed(tmp_path: Path, *, closure: bool) -> None:
    """Of all-reduces that run beside the backward pass, only what nothing hides is a row: the last bucket."""
    job = GpuJob(noise=0.0)
    found = traces_of(tmp_path, job, TraceForm(closure=closure))
    table = found.table
    reduces = (table.kind == Kind.COMMUNICATION) & (table.rank == 0) & (table.step == job.first_step)
    assert table.duration_seconds[reduces].tolist() == [pytest.approx(job.transfer * 1e-6, rel=0.02)]
    (facts,) = found.collectives
    assert (facts["operation"], facts["runs_per_step"]) == ("all_reduce", job.buckets)
    assert facts["bytes_per_step"] == sum(4 * (6_553_600 + each) for each in range(job.buckets))
    assert facts["seconds_per_step"] == pytest.approx(job.buckets * job.transfer * 1e-6, rel=0.02)
    seconds = sums(table, 0)
    kernels = job.steps * job.kernels * job.kernel * 1e-6
    assert seconds["forward"] == pytest.approx(kernels, rel=0.01)
    assert seconds["backward"] == pytest.approx(2 * kernels, rel=0.01)
    assert seconds["optimizer"] == pytest.approx(kernels / 3, rel=0.01)


def test_small_table(tmp_path: Path) -> None:
    """Rows follow the collectives, not the kernels: ten times the kernels make hardly more rows."""
    few = traces_of(tmp_path / "few", GpuJob(kernels=24, kernel=200.0)).table
    many = traces_of(tmp_path / "many", GpuJob(kernels=240, kernel=20.0)).table
    assert len(many) < 1.2 * len(few)


def test_packed(tmp_path: Path) -> None:
    """Traces under gzip give the same table."""
    job = GpuJob()
    plain = traces_of(tmp_path / "plain", job).table
    write_traces(tmp_path / "packed", job, packed=True)
    packed = read_traces(tmp_path / "packed").table
    assert packed.start_seconds.tolist() == plain.start_seconds.tolist()


def test_cycles_of_a_schedule(tmp_path: Path) -> None:
    """A schedule that repeats writes several files per rank; their steps make one table."""
    write_traces(tmp_path, GpuJob(steps=3, first_step=5))
    for path in sorted(tmp_path.iterdir()):
        path.rename(path.with_name(f"first-{path.name}"))
    write_traces(tmp_path, GpuJob(steps=3, first_step=25))
    assert sorted(set(read_traces(tmp_path).table.step.tolist())) == [5, 6, 7, 25, 26, 27]


def test_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large traces are read in processes of their own, with the same result."""
    write_traces(tmp_path, GpuJob(steps=2, ranks=2))
    alone = read_traces(tmp_path)
    monkeypatch.setattr("rankwatch_profiler_traces.reading._ALONE_BYTES", 0)
    several = read_traces(tmp_path)
    assert several.table.start_seconds.tolist() == alone.table.start_seconds.tolist()
    assert several.facts == alone.facts


READ_BY_TWO = """
import os, sys
from pathlib import Path
import rankwatch_profiler_traces.reading as reading

reading._ALONE_BYTES = 0
os.sched_getaffinity = lambda _: {0, 1}
if __name__ == "__main__":
    reading.read_traces(Path(sys.argv[1]))
"""


@pytest.mark.process
def test_modules_beside_the_traces(tmp_path: Path) -> None:
    """These processes run no code from the folder in which the command is given: that of the traces, perhaps,
    where whoever made them may put a module called `multiprocessing`."""
    script, folder = tmp_path / "script.py", tmp_path / "traces"
    script.write_text(READ_BY_TWO)
    write_traces(folder, GpuJob(steps=2, ranks=2))
    (folder / "multiprocessing.py").write_text("open('was_run', 'w').close()")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run([sys.executable, script, "."], cwd=folder, env=environ, check=False)
    assert (done.returncode, (folder / "was_run").exists()) == (0, False)


@pytest.mark.parametrize(
    ("job", "ranks", "stages"),
    [
        (PipelineJob(), (), ()),
        (PipelineJob(slow_ranks={5: 1.2}), (5,), ()),
        (PipelineJob(slow_stages={2: 1.5}), (), (2,)),
    ],
)
def test_pipeline(tmp_path: Path, job: PipelineJob, ranks: tuple[int, ...], stages: tuple[int, ...]) -> None:
    """Stages, replicas and microbatches come from groups and messages; a slow stage is nobody's fault."""
    write_pipeline_traces(tmp_path, job)
    table = read_traces(tmp_path).table
    assert (table.stage == table.rank // job.replicas).all()
    assert (table.replica == table.rank % job.replicas).all()
    assert sorted(set(table.microbatch.tolist())) == list(range(job.microbatches))
    verdict = diagnose(table)
    assert (verdict.ranks, verdict.stages) == (ranks, stages)
    slower = last_end(pipeline_steps(job)) / last_end(
        pipeline_steps(replace(job, slow_ranks={}, slow_stages={}))
    )
    assert verdict.slowdown - 1.0 == pytest.approx(slower - 1.0, rel=0.05)


@pytest.mark.parametrize(
    "job",
    [ShardedJob(), ShardedJob(noise=0.03), ShardedJob(slow={5: 1.2}), ShardedJob(slow={2: 1.5}, ranks=4)],
)
def test_sharded_parameters(tmp_path: Path, job: ShardedJob) -> None:
    """Layers are gathered ahead of time, so each rank hides other collectives; the cost is right all the
    same.
    """
    write_sharded_traces(tmp_path, job)
    found = read_traces(tmp_path)
    verdict = diagnose(found.table)
    assert verdict.ranks == tuple(job.slow)
    slower = last_end(sharded_steps(job)) / last_end(sharded_steps(replace(job, slow={})))
    assert verdict.slowdown - 1.0 == pytest.approx(slower - 1.0, rel=0.05, abs=0.002)
    assert found.notes == ()
    assert {each["operation"] for each in found.collectives} == {"all_gather", "reduce_scatter"}


def test_bound_by_communication(tmp_path: Path) -> None:
    """Where transfers take longer than the compute that hides them, a slow rank costs less than its compute
    says, and the traces say so.
    """
    write_sharded_traces(tmp_path, ShardedJob(gather=1_500.0, slow={2: 1.5}))
    found = read_traces(tmp_path)
    assert diagnose(found.table).ranks == (2,)
    assert any("hides more communication behind compute" in each for each in found.notes)


def last_end(lines: list[list[Step]]) -> float:
    return max(each.end for steps in lines for each in steps[-1].kernels) - 1_000.0
