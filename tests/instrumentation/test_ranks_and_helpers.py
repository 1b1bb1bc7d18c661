"""Which processes are ranks, and of which run: those of real libraries, and helpers of multiprocessing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.records import Header
from support.jobs.forked_ranks import shared_ranks
from support.paths import ROOT
from support.training.blackbox import box, header, now, of_kind

pytest.importorskip("torch")
pytestmark = pytest.mark.process

JOBS = ROOT / "tests" / "support" / "jobs"
LAUNCHED, HELPERS = str(JOBS / "launched.py"), str(JOBS / "helpers.py")


OF_THE_NODE = {"RANK": "0", "WORLD_SIZE": "1"}
"""What launchers set that start one process on each node; it starts the ranks."""


def forked(directory: Path, *arguments: str, **variables: str) -> str:
    """Run a process that has imported torch to its end. Returns what it printed."""
    environ = {**os.environ, **variables, "RANKWATCH_DIR": str(directory / "boxes")}
    return shared_ranks().run_alone(arguments, environ, log=directory / "log")


def headers(directory: Path) -> list[Header]:
    """The headers of all boxes, by rank. No other file is left."""
    paths = [each for each in directory.rglob("*") if each.is_file()]
    assert [now(each).steps_completed for each in paths] == [3] * len(paths)
    return sorted(map(header, paths), key=lambda each: each.identity.rank)


@pytest.mark.parametrize(("way", "variables"), [("spawn", {}), ("spawn", OF_THE_NODE), ("lightning", {})])
def test_ranks_without_variables(tmp_path: Path, way: str, variables: dict[str, str]) -> None:
    """Only torch.distributed tells them apart, before or after `start`, and its store names the run."""
    assert "records nothing" not in forked(tmp_path, LAUNCHED, way, str(tmp_path / "store"), **variables)
    identities = [each.identity for each in headers(tmp_path / "boxes")]
    assert [(each.rank, each.world_size, each.local_rank) for each in identities] == [(0, 2, 0), (1, 2, 1)]
    (run,) = {each.run for each in identities}
    assert run.startswith("launched-")


def test_helpers(tmp_path: Path) -> None:
    """Children that import the script again record nothing. The box of the trainer stays as it is."""
    assert forked(tmp_path, HELPERS) == ""
    path = box(tmp_path / "boxes")
    assert [each.name for each in path.parent.iterdir()] == ["0.blackbox"]
    assert [each.name for each in of_kind(path, RecordKind.LIFECYCLE)] == ["started", "finished"]
    assert [each.payload[0] for each in of_kind(path, RecordKind.STEP)] == list(range(6))
