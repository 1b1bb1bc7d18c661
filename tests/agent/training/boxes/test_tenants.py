"""Directories of runs and tenants: whose they are, what they are called, and which cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations, count, product
from pathlib import Path

import pytest

from rankwatch.blackbox.tenants import run_label, tenants_of
from rankwatch.conventions.states import BoxFault
from rankwatch.identity import in_tenant
from rankwatch_agent.training.boxes.run_directories import BoxFaults, RunDirectories
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_cli.commands import ls
from rankwatch_cli.runs import named_run
from support.processes.mounts import run_beside_dead_server
from support.processes.users import ALICE, BOB, CAROL, as_user, become, node_directory, run_as
from support.training.ranks import faults, rank, values

__all__ = ["node_directory"]

pytestmark = pytest.mark.process


def tenant(directory: Path, name: str) -> Path:
    """As the kubelet makes it for `subPathExpr`: of root, and writable for all, without the sticky bit."""
    path = directory / name
    path.mkdir()
    path.chmod(0o777)
    return path


def runs(directory: Path) -> set[str]:
    return {
        labels[0] for labels in values(RanksCollector(directory=directory).collect(), "rankwatch_rank_state")
    }


def test_names(node_directory: Path) -> None:
    """Two tenants may have runs of one name and one user. Each is a run of its own, and found by its name."""
    for name in ("team-a", "team-b"):
        tenant(node_directory, name)
    with (
        rank(node_directory, "steps(1)\nready()", before=become(ALICE)),
        rank(node_directory / "team-a", "steps(1)\nready()", before=become(ALICE)),
        rank(node_directory / "team-b", "steps(1)\nready()", before=become(ALICE)),
        rank(node_directory / "team-b", "steps(1)\nready()", run="team-b.own", before=become(BOB)),
    ):
        assert runs(node_directory) == {
            "job",
            f"team-a.job-uid{ALICE}",
            f"team-b.job-uid{ALICE}",
            "team-b.own",
        }
        assert named_run("team-a.job", node_directory) == node_directory / "team-a" / "job"
        assert named_run("team-b.o", node_directory) == node_directory / "team-b" / "team-b.own"


def test_joining_a_run(node_directory: Path) -> None:
    """Who makes a run of the same name, beside or inside, neither adds a rank nor takes its place."""
    inside = tenant(node_directory, "team-a")
    run_as(BOB, inside, "[box('job', number) for number in (0, 5)]")
    run_as(CAROL, node_directory, "[box('team-a.job', number) for number in (0, 5)]")
    with rank(inside, "steps(1)\nready()", run="team-a.job", before=become(ALICE)):
        collection = RanksCollector(directory=node_directory).collect()
    assert {labels[:3] for labels in values(collection, "rankwatch_rank_state")} == {
        ("team-a.job", "0", "running"),
        *((f"team-a.job-uid{user}", number, "lost") for user in (BOB, CAROL) for number in ("0", "5")),
    }
    assert faults(collection) == {}


@pytest.mark.parametrize(
    ("run", "owner", "label"),
    [
        ("team-a/team-a.job", 1, "team-a.job"),
        ("team-a/job", 2, "team-a.job-uid2"),
        ("team-a.job", 3, "team-a.job-uid3"),
        ("team-a/team-a.job-uid1", 1, "team-a.job-uid1"),
        ("team-a/job-uid1", 2, "team-a.job-uid1-uid2"),
        ("team-a.job-uid1", 3, "team-a.job-uid1-uid3"),
        ("team-b.job", 1, "team-b.job"),
        ("job", 1, "job"),
    ],
)
def test_labels(tmp_path: Path, run: str, owner: int, label: str) -> None:
    """A run whose name a trainer has begun with that of its tenant has it for itself. Another one in the
    tenant's folder, and one elsewhere that begins like a tenant's, are those of their owners. `team-b` is
    none."""
    tenant(tmp_path, "team-a")
    assert run_label(tmp_path / run, tmp_path, owner) == label


def test_no_label_of_others(tmp_path: Path) -> None:
    """Whatever folders are called: two that have one label belong to one user, not to two tenants."""
    for name in ("a", "b"):
        tenant(tmp_path, name)
    endings = ("", "-uid1", "-uid2", "-uid1-2", "-uid1-uid2", "-uid2-uid1", "-uid01")
    names = [f"{before}x{ending}" for before in ("", "a.", "b.", "a.a.", "a.b.") for ending in endings]
    labels = []
    for where, name, owner, foreign in product(("", "a", "b"), names, (1, 2), (False, True)):
        run = tmp_path / where / name
        labels.append((run, owner, foreign, run_label(run, tmp_path, owner, foreign=foreign)))
    for (run, owner, foreign, label), (other, its_owner, its_foreign, its_label) in combinations(labels, 2):
        is_one_folder = run == other and not (foreign or its_foreign)  # which has one owner
        if label == its_label and not is_one_folder:
            assert owner == its_owner, (run, other)
            assert tmp_path in (run.parent, other.parent) or run.parent == other.parent


def test_list(node_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with rank(tenant(node_directory, "team-a"), "steps(1)\nready()", before=become(ALICE)):
        assert ls.main(["--directory", str(node_directory)]) == 0
    assert "team-a.job" in capsys.readouterr().out


def test_no_tenants(node_directory: Path) -> None:
    """A user makes no tenant, and neither does a name that could be read as two."""
    tenant(node_directory, "team-a")
    tenant(node_directory, "team.b")
    (node_directory / "private").mkdir(mode=0o700)
    (node_directory / "link").symlink_to("team-a")
    run_as(ALICE, node_directory, "(directory / 'mine').mkdir(); (directory / 'mine').chmod(0o777)")
    assert tenants_of(node_directory) == [node_directory / "team-a"]
    assert in_tenant("team-a.job", "team-a") == in_tenant("job", "team-a") == "team-a.job"
    assert tenants_of(node_directory / "nowhere") == []


@pytest.mark.parametrize(
    ("owner", "mode", "unsafe"), [(0, 0o1777, 0), (0, 0o777, 1), (ALICE, 0o1777, 1), (ALICE, 0o755, 1)]
)
def test_unsafe_directory(node_directory: Path, owner: int, mode: int, unsafe: int) -> None:
    """Who owns it, or writes to it without a sticky bit, could exchange the runs of others: counted."""
    node_directory.chmod(mode)
    os.chown(node_directory, owner, owner)
    found = faults(RanksCollector(directory=node_directory).collect())
    assert found.get(BoxFault.UNSAFE_DIRECTORY, 0) == unsafe


LISTED = """
import sys
from pathlib import Path
from rankwatch_agent.training.boxes.run_directories import BoxFaults
from rankwatch_agent.training.boxes.run_directories import RunDirectories
directory, faults = Path(sys.argv[1]), BoxFaults()
directories = RunDirectories(directory, faults)
directories.update()
boxes = [str(box.relative_to(directory)) for run in directories.runs.values() for box in run.boxes]
print(sorted(boxes), faults.by_reason["unreadable"])
"""


def test_link_in_the_place_of_a_run(tmp_path: Path) -> None:
    """One that becomes a link between two lists has no boxes: those that it leads to are others'."""
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
