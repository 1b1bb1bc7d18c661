"""What `diagnose run` says of checkpoints, from black boxes that real runs of this process have written."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankwatch_agent.training.checkpoints.verifications import VerificationRecord, VerificationRecords
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.report import lines
from support.diagnosis.run_boxes import recorded_run
from support.training.ranks import rank


def attempt(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    restarts: int,
    *,
    resumed: int | None,
    to: int,
    saved: int,
) -> None:
    """Two ranks that save at step `saved`, and rank 1 one step later, too."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
    for number in range(2):
        run = recorded_run(directory, rank=number, world=2)
        if resumed is not None:
            run.resumed(resumed)
        for step in range(0 if resumed is None else resumed + 1, to + 1):
            with run.step(step):
                pass
            if step == saved or (step == saved + 1 and number == 1):
                with run.checkpoint("save", step=step):
                    pass
        run.finish()


def good_step(found: Mapping[str, object]) -> object:
    good: Any = found["last_good"]
    return good["step"]


def test_complete_over_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that one rank alone has saved is not complete."""
    attempt(tmp_path, monkeypatch, 0, resumed=None, to=9, saved=5)
    found = diagnose_run(tmp_path).checkpoints
    assert (found["newest_saved_step"], found["newest_complete_step"]) == (6, 5)
    assert good_step(found) == 5
    assert "restored_step" not in found


def test_last_good_of_an_earlier_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the present attempt has saved, the checkpoint of the one before is what is left."""
    attempt(tmp_path, monkeypatch, 0, resumed=None, to=9, saved=5)
    attempt(tmp_path, monkeypatch, 1, resumed=5, to=7, saved=99)
    assert good_step(diagnose_run(tmp_path).checkpoints) == 5


def test_last_good_where_the_run_verifies(tmp_path: Path) -> None:
    """What is saved and not verified yet does not count."""
    run = recorded_run(tmp_path)
    for operation, step in (("save", 3), ("verify", 3), ("save", 6), ("upload", 6)):
        with run.checkpoint(operation, step=step):
            pass
    run.finish()
    assert good_step(diagnose_run(tmp_path).checkpoints) == 3


def test_damage_that_the_agent_has_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A complete checkpoint that the agent cannot read whole is not good; the newest verified one is."""
    attempt(tmp_path / "boxes", monkeypatch, 0, resumed=None, to=9, saved=5)
    records = VerificationRecords(tmp_path / "state")
    records.add("job", VerificationRecord("/data/3", 3, 10.0, "good", 11.0, 1.0))
    bad = VerificationRecord("/data/5", 5, 20.0, "damaged", 21.0, 1.0, 7, "a.pt", "w", "flipped")
    records.add("job", bad)
    records.add("other", VerificationRecord("/data/9", 9, 40.0, "good", 50.0, 1.0))
    verdict = diagnose_run(tmp_path / "boxes", agent_state=tmp_path / "state")
    assert (good_step(verdict.checkpoints), verdict.checkpoints["agent_verified_step"]) == (3, 3)
    (line,) = (each for each in lines(verdict) if each.startswith("checkpoints: "))
    assert "damaged: step 5 (/data/5: a.pt, w: flipped)" in line
    assert good_step(diagnose_run(tmp_path / "boxes").checkpoints) == 5
    records.add("job", VerificationRecord("/data/5", 5, 60.0, "good", 61.0, 1.0))
    verdict = diagnose_run(tmp_path / "boxes", agent_state=tmp_path / "state")
    assert (good_step(verdict.checkpoints), verdict.checkpoints["agent_verified_step"]) == (5, 5)
    assert "agent_found_damaged" not in verdict.checkpoints


@pytest.mark.process
def test_no_good_one(tmp_path: Path) -> None:
    """A rank that is in its first save completes nothing, whatever others have saved."""
    with (
        rank(tmp_path, "steps(1)\nwith run.checkpoint('save'): pass\nready()", number=0, world=2),
        rank(tmp_path, "steps(1)\nrun.checkpoint('save').begin()\nready()", number=1, world=2),
    ):
        verdict = diagnose_run(tmp_path)
    assert "last_good" not in verdict.checkpoints
    (line,) = (each for each in lines(verdict) if each.startswith("checkpoints: "))
    assert "no good one" in line


def test_resume_from_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume counts what earlier attempts had done beyond it, and names the newer complete checkpoint."""
    attempt(tmp_path, monkeypatch, 0, resumed=None, to=9, saved=5)
    attempt(tmp_path, monkeypatch, 1, resumed=2, to=4, saved=99)
    verdict = diagnose_run(tmp_path)
    found = verdict.checkpoints
    assert (found["restored_step"], found["steps_lost"]) == (2, 7)
    assert found["resumed_although_complete_step"] == 5
    (line,) = (each for each in lines(verdict) if each.startswith("checkpoints: "))
    assert "resumed from step 2, steps lost: 7, although step 5 is complete" in line


@pytest.mark.process
def test_killed_and_failed_saves(tmp_path: Path) -> None:
    """A save that SIGKILL cuts off is unfinished, and a late failure is told from others, with its stage."""
    code = """
with run.checkpoint("save", step=3): pass
late = run.checkpoint("save", step=5).begin()
late.unblock()
steps(1)
late.end(failed=True)
run.checkpoint("save", step=7).begin().stage("write").begin()
ready()
"""
    with rank(tmp_path, code) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    verdict = diagnose_run(tmp_path)
    found = verdict.checkpoints
    assert (found["newest_saved_step"], found["newest_complete_step"]) == (3, 3)
    assert (found["unfinished_saves"], found["failures_by_stage"]) == (1, {"other": 1})
    assert found["failures_after_training_went_on"] == 1
    (line,) = (each for each in lines(verdict) if each.startswith("checkpoints: "))
    assert "failed saves by stage: other 1, 1 of them after training had gone on" in line
    assert "unfinished saves: 1" in line
