"""The page of a run in its experiment tracker, from the note of rank 0, which nobody has to trust."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rankwatch.conventions.vocabulary import TrackerKind
from rankwatch.trackers.finding import Tracker, write_note
from rankwatch.untrusted.folders import Folder
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.tracked_runs import TrackedRuns
from support.training.ranks import rank, values

pytestmark = pytest.mark.process

PAGE = "https://wandb.ai/me/p/runs/abc"
WANDB = Tracker(TrackerKind.WANDB, "abc", PAGE)
MLFLOW = Tracker(TrackerKind.MLFLOW, "0" * 32, "", "http://mlflow:5000")


def urls(collector: RanksCollector) -> set[str]:
    """The pages that the agent exports."""
    return {labels[-1] for labels in values(collector.collect(), "rankwatch_run_info")}


def test_page_of_a_run(tmp_path: Path) -> None:
    """It is on the run's info series as soon as rank 0 has noted it, changes with it, and goes with it."""
    tracked = TrackedRuns()
    collector = RanksCollector(directory=tmp_path, tracked=tracked)
    with rank(tmp_path, "steps(3)\nready()", world=2):
        assert urls(collector) == {""}
        write_note(Folder.open(tmp_path / "job"), "0.trackers", [MLFLOW, WANDB])
        assert urls(collector) == {PAGE}
        assert tracked.runs["job"].trackers == (MLFLOW, WANDB)
        assert tracked.runs["job"].figures.steps >= 2  # the newest may wait for its collectives
        (tmp_path / "job" / "0.trackers").unlink()
        assert urls(collector) == {""}
        assert tracked.runs == {}


def test_other_ranks(tmp_path: Path) -> None:
    """Only rank 0 speaks for a run."""
    with rank(tmp_path, "ready()", number=1, world=2):
        write_note(Folder.open(tmp_path / "job"), "1.trackers", [WANDB])
        assert urls(RanksCollector(directory=tmp_path)) == {""}


@pytest.mark.parametrize(
    "content", [b"", b"x" * 10_000, b"\xff\x00", json.dumps({"trackers": 1}).encode(), None]
)
def test_odd_notes(tmp_path: Path, content: bytes | None) -> None:
    """Notes that are empty, huge, no JSON or links say nothing, and harm nothing."""
    with rank(tmp_path, "ready()"):
        note = tmp_path / "job" / "0.trackers"
        if content is None:
            write_note(Folder.open(tmp_path), "elsewhere", [WANDB])
            note.symlink_to(tmp_path / "elsewhere")
        else:
            note.write_bytes(content)
        assert urls(RanksCollector(directory=tmp_path)) == {""}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file to another user")
def test_note_of_another_user(tmp_path: Path) -> None:
    """A note that somebody else put beside the box is not the run's."""
    with rank(tmp_path, "ready()"):
        write_note(Folder.open(tmp_path / "job"), "0.trackers", [WANDB])
        os.chown(tmp_path / "job" / "0.trackers", 65534, 65534)
        assert urls(RanksCollector(directory=tmp_path)) == {""}


def test_note_that_is_hidden(tmp_path: Path) -> None:
    """A note that others may not read gives no label, also where the agent is root."""
    with rank(tmp_path, "ready()"):
        note, tracked = tmp_path / "job" / "0.trackers", TrackedRuns()
        write_note(Folder.open(note.parent), note.name, [WANDB])
        note.chmod(0o640)
        collector = RanksCollector(directory=tmp_path, tracked=tracked)
        assert (urls(collector), tracked.runs) == ({""}, {})
        note.chmod(0o644)
        assert urls(collector) == {PAGE}


def test_note_of_an_ended_run(tmp_path: Path) -> None:
    """It is removed with the black box, so that the directory of the run goes too."""
    with rank(tmp_path, "run.finish()\nready()"):
        write_note(Folder.open(tmp_path / "job"), "0.trackers", [WANDB])
    collector = RanksCollector(directory=tmp_path, retention_seconds=1e-6)
    collector.collect()
    collector.collect()
    assert list(tmp_path.iterdir()) == []
