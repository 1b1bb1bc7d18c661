"""How long a run may stand still, and how little may slow it down, before somebody is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.conventions import Cause, SlowPhase
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from rankwatch_diagnosis.run.boxes import Boxes
from rankwatch_diagnosis.run.engine import RunState, diagnose_run
from rankwatch_diagnosis.run.waiting import (
    LEAST_STALL_SECONDS,
    MOST_STALL_SECONDS,
    Recorders,
    judge_waiting,
    stall_seconds,
)
from rankwatch_diagnosis.straggler.verdict import Verdict
from support.diagnosis.run_boxes import RankBox, boxes_seen
from support.training.ranks import rank

STANDS = (State.HANG, State.DESYNC)


def judged(boxes: Boxes, *, stall: float) -> HangVerdict:
    """Whom they wait for."""
    return judge_waiting(boxes, Recorders(), stall=stall, complete=False)


@pytest.mark.parametrize(("slowdown", "named"), [(1.004, ()), (1.02, (1,))])
def test_a_rank_that_costs_a_run_less_than_one_percent_is_not_named(
    slowdown: float, named: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the straggler engine found is told all the same, with its cause."""
    found = Verdict(cause=Cause.SLOW_RANK, phase=SlowPhase.COMPUTE, ranks=(1,), slowdown=slowdown)
    monkeypatch.setattr("rankwatch_diagnosis.run.engine._straggler", lambda _: found)
    with rank(tmp_path, "steps(2); ready()", world=2):
        verdict = diagnose_run(tmp_path)
    assert (verdict.state, verdict.ranks, verdict.straggler) == (RunState.RUNNING, named, found)
    assert "cause: slow_rank (compute)" in verdict.why
    assert ("rank 1" in verdict.why) is bool(named)


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


def test_a_first_checkpoint_is_no_stall_by_what_steps_have_taught(tmp_path: Path) -> None:
    """Nothing tells it from a hang: the limit is that of the alert, and an age that is given counts."""
    learnt(tmp_path)
    boxes = boxes_seen(tmp_path, {0: 0.0, 1: 0.0})
    assert stall_seconds(boxes) == MOST_STALL_SECONDS
    assert judged(boxes, stall=stall_seconds(boxes)).state not in STANDS
    assert judged(boxes, stall=30.0).ranks == (0,)


def test_ranks_that_have_learnt_long_steps_may_wait_for_long(tmp_path: Path) -> None:
    """Five times the second longest step, beyond 30 seconds, too; short ones at least 5."""
    for seconds, limit in ((0.1, LEAST_STALL_SECONDS), (10.0, 50.0)):
        directory = tmp_path / str(limit)
        box = RankBox(directory, 0, world=1)
        for step in range(12):
            box.steps(step, 500.0 - seconds * step, 500.0 - seconds * (step + 1))
        assert stall_seconds(boxes_seen(directory, {0: 0.0})) == pytest.approx(limit)


def test_a_run_that_takes_long_to_start_is_not_stalled(tmp_path: Path) -> None:
    """Nothing is learnt, and nobody waits for anybody."""
    for number in range(2):
        RankBox(tmp_path, number, world=2)
    boxes = boxes_seen(tmp_path, {0: 0.0, 1: 0.0})
    assert judged(boxes, stall=stall_seconds(boxes)).state not in STANDS
