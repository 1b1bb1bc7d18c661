"""The boxes of earlier attempts stay, a few of each rank, and go with the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankwatch.blackbox import earlier_attempts
from rankwatch.blackbox.writer import Writer
from rankwatch.identity import Identity
from rankwatch.sweep import sweep
from rankwatch.untrusted.folders import Folder
from support.processes.python import python
from support.training.blackbox import header, now

pytestmark = pytest.mark.process

CODE = """
import os, rankwatch
with rankwatch.start(run="job") as run:
    with run.step(int(os.environ["STEP"])):
        pass
"""


def attempt(directory: Path, number: int, rank: int = 0, world: int = 1) -> None:
    """A process that records one step and ends."""
    place = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    python(CODE, directory=directory, check=True, STEP=str(number), RANKWATCH_ATTEMPT=str(number), **place)


def steps(path: Path) -> int:
    """Last step in a box."""
    return now(path).step


def test_earlier_attempts(tmp_path: Path) -> None:
    """The newest few of each rank are kept, whole."""
    for number in range(5):
        attempt(tmp_path, number)
    attempt(tmp_path, 4, rank=10, world=11)
    found = earlier_attempts.listed(tmp_path / "job")
    assert [(rank, number) for rank, number, _ in found] == [(0, 1), (0, 2), (0, 3)]
    assert [steps(path) for _, _, path in found] == [1, 2, 3]
    assert steps(tmp_path / "job" / "0.blackbox") == 4


def test_link(tmp_path: Path) -> None:
    """A link in the place of their folder leads to boxes of somebody else: none of them is the run's."""
    for number in range(2):
        attempt(tmp_path, number)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / earlier_attempts.FOLDER).symlink_to(tmp_path / "job" / earlier_attempts.FOLDER)
    (tmp_path / "named").symlink_to(tmp_path / "job")
    assert earlier_attempts.listed(tmp_path / "other") == []
    assert len(earlier_attempts.listed(tmp_path / "named")) == 1, "a person may name a link"


def test_reasons(tmp_path: Path) -> None:
    """The small files that tell why a process ended move along, and go with the box; others stay."""
    run = tmp_path / "job"
    for number in range(5):
        attempt(tmp_path, number)
        for suffix in earlier_attempts.REASONS:
            (run / f"0{suffix}").write_text(f"{suffix} of {number}")
    (run / "0.crashed").write_bytes(bytes(2 << 20))
    attempt(tmp_path, 5)
    names = {each.name for each in (run / "earlier").iterdir()}
    wanted = {
        f"0-{number}{suffix}" for number in (2, 3, 4) for suffix in (".blackbox", *earlier_attempts.REASONS)
    }
    assert names == wanted - {"0-4.crashed"}
    assert (run / "earlier" / "0-2.killed").read_text() == ".killed of 2"
    assert not (run / "0.killed").exists()


def test_gone_with_the_run(tmp_path: Path) -> None:
    """A sweep that removes the last box of a run removes those that are kept, too."""
    for number in range(2):
        attempt(tmp_path, number)
    with Folder.open(tmp_path) as boxes:
        sweep(boxes, kept_seconds=-1.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "put",
    [
        Path.touch,
        lambda folder: folder.symlink_to("/proc/1/nowhere"),
        lambda folder: folder.mkdir(mode=0o000),
    ],
    ids=["a file", "a link", "not writable"],
)
def test_not_kept(tmp_path: Path, put: Callable[[Path], object]) -> None:
    """What cannot be kept is lost, and the run starts all the same."""
    attempt(tmp_path, 0)
    put(tmp_path / "job" / "earlier")
    attempt(tmp_path, 1)
    assert steps(tmp_path / "job" / "0.blackbox") == 1


def test_new_rank(tmp_path: Path) -> None:
    """A rank that is new here is of the attempt of those that live, which have replaced all older boxes."""
    attempt(tmp_path, 0)
    living = Writer(tmp_path, Identity(run="job", rank=0, world_size=2, attempt=3), phases=())
    python(CODE, directory=tmp_path, check=True, STEP="7", RANK="1", WORLD_SIZE="2")
    assert header(tmp_path / "job" / "1.blackbox").identity.attempt == 3
    living.unlock()
