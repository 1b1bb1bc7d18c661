"""The directories of runs: what a link or an unreadable directory in their place takes away."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from rankwatch_agent.training.run_directories import BoxFaults, RunDirectories
from support.processes.mounts import run_beside_dead_server
from support.processes.users import ALICE, BOB, as_user, node_directory, run_as

__all__ = ["node_directory"]

pytestmark = pytest.mark.process

LISTED = """
import sys
from pathlib import Path
from rankwatch_agent.training.run_directories import BoxFaults
from rankwatch_agent.training.run_directories import RunDirectories
directory, faults = Path(sys.argv[1]), BoxFaults()
directories = RunDirectories(directory, faults)
directories.update()
boxes = [str(box.relative_to(directory)) for run in directories.runs.values() for box in run.boxes]
print(sorted(boxes), faults.by_reason["unreadable"])
"""


def test_link_in_the_place_of_a_run(tmp_path: Path) -> None:
    """A run that becomes a link between the list of runs and that of its boxes has no boxes: those that it
    leads to are somebody else's."""
    run, other = tmp_path / "boxes" / "job", tmp_path / "other"
    for each in (run, other):
        each.mkdir(parents=True)
        (each / "0.blackbox").touch()
    clock = count(0.0, 0.03)  # each look at it is 30 ms later, so the list of runs is not made again at once
    directories = RunDirectories(tmp_path / "boxes", BoxFaults(), monotonic=lambda: next(clock))
    directories.update()
    assert directories.runs[run].boxes.keys() == {run / "0.blackbox"}
    run.rename(tmp_path / "aside")
    run.symlink_to(other)
    directories.list_again(run)
    directories.update()
    assert directories.runs[run].boxes == {}


@pytest.mark.parametrize("mode", [0o1733, 0o1766])
def test_tenant_that_cannot_be_read(node_directory: Path, mode: int) -> None:
    """One that the agent may not list or look into takes no run of others away, and is counted."""
    for name in ("team-a", "team-b"):
        (node_directory / name).mkdir()
        (node_directory / name).chmod(0o777)
        run_as(BOB, node_directory / name, "box('job', 0)")
    (node_directory / "team-a").chmod(mode)
    run_as(BOB, node_directory, "box('job', 0)")
    command = [*as_user(ALICE), sys.executable, "-c", LISTED, str(node_directory)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ended.stdout == "['job/0.blackbox', 'team-b/job/0.blackbox'] 1\n"


LINKS = """
boxes, run = directory / "boxes", directory / "boxes" / "job"
run.mkdir(parents=True)
(run / "0.blackbox").touch()
for link in (boxes / "x", run / "0.profile", run / "earlier"):
    link.symlink_to(dead)
"""
NCCL_RAS = """
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.sources.nccl_ras.collector import NcclRasCollector
try:
    NcclRasCollector(addresses=("127.0.0.1:1",), directory=boxes, schedule=Schedule(60, 20)).collect()
except NotApplicable as error:
    print(error)
"""
PROFILES = """
from rankwatch.profiling import traces_beside
print(traces_beside(run / "0.blackbox"), traces_beside(boxes / "x" / "0.blackbox"))
"""
KEPT = """
from rankwatch.blackbox.earlier_attempts import listed
print(listed(run))
"""
MODES = """
from rankwatch.untrusted.text import is_hidden
print(is_hidden(boxes / "x" / "0.error_file"), is_hidden(run / "0.none"), is_hidden(run / "0.blackbox"))
"""


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        (NCCL_RAS, "no run has its rank 0 on this node"),
        (PROFILES, "[] []"),
        (KEPT, "[]"),
        (MODES, "True False False"),
    ],
    ids=["nccl_ras", "profiles", "kept", "modes"],
)
def test_link_to_a_dead_server(tmp_path: Path, code: str, printed: str) -> None:
    """A link of a user to a file server that never answers is not followed: it would hang a thread."""
    assert run_beside_dead_server(tmp_path, LINKS + code) == f"{printed}\n"
