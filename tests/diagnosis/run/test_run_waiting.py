"""Whom a run waits for, where boxes of other nodes are not here or completions are not seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.simulation.hang import HangFault, HangKind, Plane
from bench.simulation.hang_job import HangJob, simulate_hang, write_hang_boxes
from bench.simulation.program import JobShape
from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from rankwatch_diagnosis.run.boxes import Boxes, read_boxes
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.folder import find_run
from rankwatch_diagnosis.run.snapshots import box_snapshots
from rankwatch_diagnosis.run.verdict import RunState, RunVerdict
from rankwatch_diagnosis.run.waiting import (
    LEAST_STALL_SECONDS,
    MOST_STALL_SECONDS,
    Recorders,
    judge_waiting,
    stall_seconds,
)
from rankwatch_diagnosis.straggler.verdict import FoundCause, Verdict
from support.diagnosis.run_boxes import RankBox, boxes_seen
from support.training.ranks import rank


def hung(directory: Path, shape: JobShape, fault: HangFault) -> Path:
    """The directory of the run's boxes."""
    job = HangJob(shape=shape, fault=fault)
    write_hang_boxes(simulate_hang(job), job, directory, run="job")
    return directory / "job"


def test_ranks_of_other_nodes(tmp_path: Path) -> None:
    """They are not blamed for having no box here, but with --complete their absence is evidence."""
    run = hung(tmp_path, JobShape(data_parallel=16), HangFault(ranks=(12,)))
    for number in range(8, 16):
        (run / f"{number}.blackbox").unlink()
    verdict = diagnose_run(run)
    assert (verdict.state.value, verdict.ranks) == ("stalled", ())
    assert "of which there is no black box" in verdict.why
    assert verdict.hang.missing_ranks == tuple(range(8, 16))
    (run / "7.blackbox").unlink()
    for number in (8, 9, 10, 11, 13, 14, 15):
        assert number in diagnose_run(run).hang.missing_ranks


def test_missing_box(tmp_path: Path) -> None:
    """One on a seen node is evidence; that of the last rank only where all boxes are here."""
    for missing, ranks in ((3, (3,)), (7, ())):
        run = hung(tmp_path / str(missing), JobShape(data_parallel=8), HangFault(ranks=(missing,)))
        (run / f"{missing}.blackbox").unlink()
        verdict = diagnose_run(run)
        assert (verdict.state.value, verdict.ranks) == ("stalled", ranks)
        assert diagnose_run(run, complete=True).ranks == (missing,)


@pytest.mark.parametrize("culprit", range(8))
def test_stop_in_pipeline(culprit: int, tmp_path: Path) -> None:
    """A box does not tell the peer of a receive; whoever waits is no culprit."""
    shape = JobShape(data_parallel=2, pipeline_parallel=4)
    fault = HangFault(kind=HangKind.SLEEP, ranks=(culprit,), plane=Plane.PIPELINE, occurrence=2)
    assert diagnose_run(hung(tmp_path, shape, fault)).ranks == (culprit,)


@pytest.mark.parametrize(
    ("enqueued", "state", "ranks"), [((12, 12, 10, 12), "hang", (2,)), ((12, 12, 12, 12), "ok", ())]
)
def test_without_completions(
    enqueued: tuple[int, ...], state: str, ranks: tuple[int, ...], tmp_path: Path
) -> None:
    """Who enqueued least is waited for, as with NCCL, whose ends no box sees; equal counts say nothing."""
    for number, count in enumerate(enqueued):
        box = RankBox(tmp_path, number, world=len(enqueued))
        box.enqueues(count - 1)
        box.writer.unlock()
    verdict = diagnose_run(tmp_path)
    assert (verdict.hang.state.value, verdict.ranks) == (state, ranks)


@pytest.mark.parametrize("complete", [(), (3,), (3, 5)])
def test_all_that_is_pending(complete: tuple[int, ...], tmp_path: Path) -> None:
    """What was enqueued after the newest complete one; where none is known, only the last is."""
    box = RankBox(tmp_path, 0)
    for number in complete:
        box.completes(number, 9.0 - number, 8.9 - number)
    box.enqueues(6, open_since=5.0)
    (snapshot,) = box_snapshots(read_boxes(find_run(tmp_path).boxes, copied=None), timed=True)
    pending = [each.sequence - 1 for each in snapshot.pending]
    assert pending == {(): [6], (3,): [4, 5, 6], (3, 5): [4, 6]}[complete]


STANDS = (State.HANG, State.DESYNC)


def judged(boxes: Boxes, *, stall: float) -> HangVerdict:
    """Whom they wait for."""
    return judge_waiting(boxes, Recorders(), stall=stall, complete=False)


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Verdict], RunVerdict]:
    """The verdict on a running job of which the straggler engine has found this."""

    def judge(found: Verdict) -> RunVerdict:
        monkeypatch.setattr("rankwatch_diagnosis.run.engine.judge_straggler", lambda *_: found)
        with rank(tmp_path, "steps(2); ready()", world=2):
            return diagnose_run(tmp_path)

    return judge


@pytest.mark.process
@pytest.mark.parametrize(("slowdown", "named"), [(1.004, ()), (1.02, (1,))])
def test_small_slowdown(
    slowdown: float, named: tuple[int, ...], running: Callable[[Verdict], RunVerdict]
) -> None:
    """A rank that costs less than one percent is not named, but its cause is told all the same."""
    found = Verdict(cause=Cause.SLOW_RANK, phase=SlowPhase.COMPUTE, ranks=(1,), slowdown=slowdown)
    verdict = running(found)
    assert (verdict.state, verdict.ranks, verdict.straggler) == (RunState.RUNNING, named, found)
    assert "cause: slow_rank (compute)" in verdict.why
    assert ("rank 1" in verdict.why) is bool(named)


@pytest.mark.process
def test_causes_beside_the_first(running: Callable[[Verdict], RunVerdict]) -> None:
    """A running job names all ranks that certainly cost 1 %, also where another cause costs more."""
    causes = (
        _cause(Cause.NETWORK, 1.2),
        _cause(Cause.SLOW_RANK, 1.05, ranks=(1,)),
        _cause(Cause.SLOW_RANK, 1.002, ranks=(0,)),
        _cause(Cause.INCONCLUSIVE, 1.1, certain=False),
    )
    verdict = running(Verdict(cause=Cause.NETWORK, slowdown=1.2, causes=causes))
    assert (verdict.state, verdict.ranks) == (RunState.RUNNING, (1,))
    assert "it is 20.0% slower than it could be; cause: network; also slow_rank, rank 1 (5.0%)" in verdict.why


def _cause(cause: Cause, slowdown: float, **more: Any) -> FoundCause:
    lasts = {"first_step": 0, "last_step": 9, "share_of_steps": 1.0, "lost_rank_seconds": 1.0}
    return FoundCause(cause=cause, slowdown=slowdown, **{"ranks": (), "certain": True, **lasts, **more})


def learnt(directory: Path) -> None:
    """Two ranks that have learnt that a step takes 0.1 s, of which rank 0 is in its first checkpoint."""
    boxes = [RankBox(directory, number, world=2) for number in range(2)]
    for each in boxes:
        for step in range(12):
            each.steps(step, 62.0 - 0.1 * step, 61.9 - 0.1 * step)
        each.completes(5, 60.2, 60.1)
        each.enqueues(5)
    boxes[0].in_phase("checkpoint", 60.0)
    boxes[1].enqueues(6, open_since=60.0)


def test_first_checkpoint(tmp_path: Path) -> None:
    """It is no stall by what steps have taught: the limit is that of the alert, and a given age counts."""
    learnt(tmp_path)
    boxes = boxes_seen(tmp_path)
    assert stall_seconds(boxes) == MOST_STALL_SECONDS
    assert judged(boxes, stall=stall_seconds(boxes)).state not in STANDS
    assert judged(boxes, stall=30.0).ranks == (0,)


def test_long_steps(tmp_path: Path) -> None:
    """Who has learnt long steps may wait five times the second longest; short steps give 5 seconds."""
    for seconds, limit in ((0.1, LEAST_STALL_SECONDS), (10.0, 50.0)):
        directory = tmp_path / str(limit)
        box = RankBox(directory, 0, world=1)
        for step in range(12):
            box.steps(step, 500.0 - seconds * step, 500.0 - seconds * (step + 1))
        assert stall_seconds(boxes_seen(directory)) == pytest.approx(limit)


def test_long_start(tmp_path: Path) -> None:
    """A run that takes long to start is not stalled. Nothing is learnt, and nobody waits for anybody."""
    for number in range(2):
        RankBox(tmp_path, number, world=2)
    boxes = boxes_seen(tmp_path)
    assert judged(boxes, stall=stall_seconds(boxes)).state not in STANDS


def test_lone_rank(tmp_path: Path) -> None:
    """A run of one rank waits for itself: it is named with its phase, and no other rank is mentioned."""
    box = RankBox(tmp_path, 0, world=1)
    for number in range(5):
        box.steps(number, 1000.0 - number, 999.5 - number)
    box.in_phase("forward", 990.0)
    boxes = boxes_seen(tmp_path)
    found = judge_waiting(boxes, Recorders(), stall=30.0, complete=False, given=True)
    assert (found.state, found.ranks, found.evidence["phases"]) == (State.HANG, (0,), {"forward": [0]})
    assert "notes" not in found.evidence
