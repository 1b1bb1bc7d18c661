"""Where the time of a run goes: its phases, and single steps that lost time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.simulation.black_boxes import write_job_boxes
from bench.simulation.job import Job, simulate
from bench.simulation.program import JobShape
from bench.simulation.workload import Fault
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions.states import Cause
from rankwatch.conventions.vocabulary import PHASES
from rankwatch.identity import Identity
from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.report import as_json, lines
from rankwatch_diagnosis.run.verdict import RunVerdict

STALLED_STEP = 60


def stalled(table: OperationTable, operation: str, rank: int, seconds: float) -> OperationTable:
    """The same, with one operation of one rank that takes longer; its peers wait for it in a collective."""
    number = table.operations.index(operation)
    at = (table.step == STALLED_STEP) & (table.operation == number) & (table.rank == rank)
    begin = table.start_seconds[at][0]
    start, duration = table.start_seconds.copy(), table.duration_seconds.copy()
    duration[at] += seconds
    waits = (table.step == STALLED_STEP) & (table.kind == Kind.COMMUNICATION) & (table.rank != rank)
    duration[waits] += seconds
    later = (table.step > STALLED_STEP) | (
        (table.step == STALLED_STEP) & (table.rank == rank) & (table.start_seconds > begin)
    )
    start[later] += seconds
    return replace(table, start_seconds=start, duration_seconds=duration)


def verdict_of(
    directory: Path, ranks: int, *, fault: Fault | None = None, more: tuple[Fault, ...] = (), **stall: Any
) -> RunVerdict:
    """The verdict about the boxes of a simulated job of 100 steps."""
    shape = JobShape(data_parallel=ranks)
    job = Job(shape=shape, fault=fault or Fault(), more_faults=more, steps=100, seed=1)
    table = simulate(job).table
    if stall:
        table = stalled(table, **stall)
    write_job_boxes(table, shape, directory, run="job", seed=1)
    return diagnose_run(directory)


def test_phases_of_a_run(tmp_path: Path) -> None:
    """Each phase has its time and its share of the step, in the median rank and in the worst one."""
    fault = Fault(cause=Cause.SLOW_RANK, ranks=(3,), factor=1.4)
    verdict = verdict_of(tmp_path, 4, fault=fault)
    table: Any = as_json(verdict)["phases"]
    phases = {each["phase"]: each for each in table["of_step"]}
    assert list(phases) == ["data_wait", "forward", "backward", "optimizer", "communication", "other"]
    assert sum(each["share"] for each in phases.values()) == pytest.approx(1.0)
    assert phases["forward"]["worst_rank"] == 3
    assert phases["forward"]["worst_seconds"] == pytest.approx(1.4 * phases["forward"]["seconds"], rel=0.03)
    assert phases["communication"]["worst_rank"] != 3
    assert (table["ranks"], table["steps"]) == (4, 99)
    shown = list(lines(verdict))
    assert any(
        line.startswith("phases:      ") and "in the median rank, over 99 steps" in line for line in shown
    )
    (forward,) = (line for line in shown if line.startswith("  forward "))
    assert "the worst 56." in forward and forward.endswith("on rank 3")


def test_phases_of_a_lone_rank(tmp_path: Path) -> None:
    """A run of one rank has the same table, without a worst rank."""
    shown = list(lines(verdict_of(tmp_path, 1)))
    (forward,) = (line for line in shown if line.startswith("  forward "))
    assert forward.endswith("%")
    assert not any("worst" in line for line in shown)


def test_checkpoint_and_evaluation_apart(tmp_path: Path) -> None:
    """They are no part of a step's phases, inside of the step or between two."""
    writer = Writer(tmp_path, Identity(run="job"), phases=PHASES, capacity=256)

    def phase(name: str, start: float, end: float) -> None:
        writer.append(RecordKind.PHASE, writer.name_number(name), start, end, layout.STEP, 0, 0)

    for step in range(1, 20):
        at = float(100 + step)
        if step == 10:
            phase("evaluation", at - 0.2, at)
        phase("forward", at, at + 0.1)
        if step in (5, 15):
            phase("checkpoint", at + 0.1, at + 0.1 + 0.02 * step)
        end = at + 0.1 + (0.02 * step if step in (5, 15) else 0.0)
        writer.append(RecordKind.STEP, 0, at, end, layout.STEP, step, 0)
    writer.unlock()
    verdict = diagnose_run(tmp_path)
    table: Any = verdict.phases
    assert [(each["phase"], each["share"]) for each in table["of_step"]] == [("forward", 1.0)]
    assert table["step_seconds"] == pytest.approx(0.1)
    apart = {each["phase"]: each for each in table["apart"]}
    assert apart["checkpoint"]["count"] == 2
    assert apart["checkpoint"]["seconds"] == pytest.approx(0.2)
    assert apart["checkpoint"]["worst_seconds"] == pytest.approx(0.3)
    assert apart["evaluation"]["total_seconds"] == pytest.approx(0.2)
    (line,) = (each for each in lines(verdict) if each.startswith("  checkpoint "))
    assert line == "  checkpoint     200.0 ms, 2 times, the longest 300.0 ms"


def test_run_without_whole_steps(tmp_path: Path) -> None:
    """There is nothing to tell about phases, and no empty table."""
    writer = Writer(tmp_path, Identity(run="job"), phases=PHASES, capacity=256)
    writer.unlock()
    verdict = diagnose_run(tmp_path)
    assert verdict.phases == {}
    assert not any("phases:" in line for line in lines(verdict))


def test_time_lost_in_one_pass(tmp_path: Path) -> None:
    """Fourteen seconds in one forward pass are reported with rank and phase, and slow nothing down."""
    verdict = verdict_of(tmp_path, 4, operation="forward", rank=2, seconds=14.0)
    assert verdict.straggler is not None
    assert (verdict.straggler.cause, verdict.straggler.slowdown) == (Cause.NONE, 1.0)
    shown = list(lines(verdict))
    assert "lost time:   14.0 s in 1 single step, which the slowdown leaves out" in shown
    assert f"  step {STALLED_STEP}: 14.0 s in forward on rank 2" in shown
    (event,) = as_json(verdict)["straggler"]["events"]  # type: ignore[index, call-overload]
    assert event["lost_seconds"] == pytest.approx(14.0, abs=0.1)
    table: Any = verdict.phases
    assert table["step_seconds"] < 0.3, "one long step does not move the phases"


def test_suspect_of_two_ranks(tmp_path: Path) -> None:
    """Of two ranks neither is the odd one; the suspect, its excess and its cost are shown."""
    verdict = verdict_of(tmp_path, 2, fault=Fault(cause=Cause.SLOW_RANK, ranks=(1,), factor=1.4))
    (line,) = (each for each in lines(verdict) if each.startswith("slowdown:"))
    assert line.startswith(
        "slowdown:    inconclusive: of two ranks, neither can be called the odd one: rank 1 is 40."
    )
    assert "slower since step 1, and that costs 3" in line
    assert line.endswith("rank-seconds lost")


def test_two_slow_ranks(tmp_path: Path) -> None:
    """The costlier one is the verdict. The other one is named beside it, with what it alone costs."""
    slow = Fault(cause=Cause.SLOW_RANK, ranks=(3,), factor=1.5, first_step=50)
    before = Fault(cause=Cause.SLOW_RANK, ranks=(6,), factor=1.3, duration=40)
    verdict = verdict_of(tmp_path, 8, fault=slow, more=(before,))
    first, second = (line for line in lines(verdict) if "slow_rank" in line)
    assert first.startswith("slowdown:    slow_rank (compute) rank 3 since step 50: ")
    assert second.startswith("             also slow_rank (compute) rank 6 since step 1: ")
    assert second.endswith(" rank-seconds lost")
    assert verdict.straggler is not None
    assert [each.ranks for each in verdict.straggler.others] == [(6,)]
