"""The number of an attempt: the same on all nodes, and never twice for one run. Earlier boxes stay."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from rankwatch.blackbox import earlier_attempts, layout
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.writer import Writer
from rankwatch.identity import MOST_ATTEMPTS, Identity, as_traceparent
from rankwatch.launchers import attempt_by, most_attempts_by, nvrx_job_by
from rankwatch.sweep import sweep
from rankwatch.untrusted.folders import Folder
from support.processes.python import python
from support.training.blackbox import now

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("env", "attempt"),
    [
        ({}, 0),
        ({"TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3"}, 2),
        ({"SLURM_RESTART_COUNT": "1"}, 1),
        ({"AWS_BATCH_JOB_ATTEMPT": "1"}, 0),
        ({"AWS_BATCH_JOB_ATTEMPT": "3"}, 2),
        ({"RANKWATCH_ATTEMPT": "5", "SLURM_RESTART_COUNT": "1"}, 5),
        ({"TORCHELASTIC_RESTART_COUNT": "x", "SLURM_RESTART_COUNT": "-1"}, 0),
    ],
)
def test_counted_by_the_launcher(env: dict[str, str], attempt: int) -> None:
    """A count that is no number is ignored: a wrong variable must not end the recording."""
    assert attempt_by(env) == attempt


@pytest.mark.parametrize(
    ("env", "most"),
    [
        ({}, 0),
        ({"TORCHELASTIC_MAX_RESTARTS": "0"}, 1),
        ({"TORCHELASTIC_MAX_RESTARTS": "2", "TORCHELASTIC_RESTART_COUNT": "1"}, 3),
        ({"TORCHELASTIC_MAX_RESTARTS": "2", "SLURM_RESTART_COUNT": "1"}, 6),
        ({"TORCHELASTIC_MAX_RESTARTS": "many"}, 0),
    ],
)
def test_most_attempts(env: dict[str, str], most: int) -> None:
    """Only torchrun says how often it starts the ranks again. A requeued job begins to count anew."""
    assert most_attempts_by(env) == most


def test_requeued_job_never_repeats_a_number() -> None:
    """torchrun counts anew after a requeue, so its count alone would repeat."""
    names = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
    counts = itertools.product("0123", repeat=2)
    envs = ({"TORCHELASTIC_MAX_RESTARTS": "3", **dict(zip(names, each, strict=True))} for each in counts)
    numbers = [attempt_by(each) for each in envs]
    assert len(numbers) == 16
    assert numbers == sorted(set(numbers))


RANK = """
import os, rankwatch
with rankwatch.start(run="job") as run:
    with run.step(int(os.environ.get("STEP", "0"))):
        pass
print(run.identity.attempt)
"""


def attempt(
    directory: Path, number: int | None = None, *, rank: int = 0, world: int = 1, **variables: str
) -> int:
    """The number of the attempt of a process that records one step and ends. number: the launcher's."""
    place = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    counted = {} if number is None else {"STEP": str(number), "RANKWATCH_ATTEMPT": str(number)}
    return int(python(RANK, directory=directory, check=True, **place, **counted, **variables).stdout)


@pytest.mark.process
def test_node_that_torchrun_restarts_for_another_one(tmp_path: Path) -> None:
    """torchrun does not count a restart on a node on which no rank failed. The boxes there do."""
    node_that_failed, other_node = tmp_path / "a", tmp_path / "b"
    failed = [attempt(node_that_failed, TORCHELASTIC_RESTART_COUNT=str(count)) for count in range(3)]
    other = [attempt(other_node, TORCHELASTIC_RESTART_COUNT="0") for _ in range(3)]
    assert failed == other == [0, 1, 2]


@pytest.mark.process
def test_living_ranks_are_of_the_present_attempt(tmp_path: Path) -> None:
    """A rank that starts after its peers is of the same attempt."""
    peer = Writer(tmp_path, Identity(run="job", rank=1, world_size=2), phases=())
    assert attempt(tmp_path) == 0
    peer.unlock()


@pytest.mark.parametrize(
    ("written", "read"), [((3, 5), (3, 5)), ((2**32 - 1, 2**32 - 1), (MOST_ATTEMPTS, MOST_ATTEMPTS))]
)
def test_header(tmp_path: Path, written: tuple[int, int], read: tuple[int, int]) -> None:
    """The agent reads attempts and traceparent from the box, since it does not see the environment of a rank.
    The number of a forged box is no reason to count so far."""
    identity = Identity(run="job", attempt=written[0], most_attempts=written[1])
    writer = Writer(tmp_path, identity, phases=(), traceparent=TRACEPARENT)
    header = Reader(writer.path).header
    assert (header.identity.attempt, header.identity.most_attempts) == read
    assert header.traceparent == TRACEPARENT


def test_older_box_is_of_attempt_0(tmp_path: Path) -> None:
    """A box that is older than the field has zeros there."""
    writer = Writer(tmp_path, Identity(run="job", attempt=3), phases=(), traceparent=TRACEPARENT)
    at, size = layout.STARTED_BY_OFFSET, layout.STARTED_BY.size
    writer.target[at : at + size] = bytes(size)
    header = Reader(writer.path).header
    assert (header.identity.attempt, header.traceparent) == (0, "")


def test_header_fields_do_not_overlap() -> None:
    """Fields are added in the free part of the header."""
    coordinates = layout.FIXED.size + layout.MAX_COORDINATES * layout.COORDINATE.size
    assert coordinates <= layout.DECLARED_OFFSET
    assert layout.DECLARED_OFFSET + layout.DECLARED.size <= layout.STARTED_BY_OFFSET
    assert layout.STARTED_BY_OFFSET + layout.STARTED_BY.size <= layout.HEADER_SIZE
    assert struct.calcsize("<I64sI") == layout.STARTED_BY.size


NO_TRACE = "00-" + "0" * 32 + "-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "text", ["", "no", NO_TRACE, TRACEPARENT.upper(), TRACEPARENT + "-x", "ff" + TRACEPARENT[2:]]
)
def test_wrong_traceparent_counts_as_none(text: str) -> None:
    """W3C trace context: a receiver ignores what it cannot parse."""
    assert as_traceparent(text) == ""
    assert as_traceparent(TRACEPARENT) == TRACEPARENT


@pytest.mark.parametrize(
    ("link", "job"),
    [
        ("/shared/nvrx/cycle_info.70.current", "70"),
        ("cycle_info.a.b-c.current", "a.b-c"),
        ("/shared/cycle_info.70.0.1", ""),
        ("/shared/cycle_info..current", ""),
        (f"/shared/cycle_info.{'x' * 129}.current", ""),
        ("/shared/cycle_info.7\n0.current", ""),
        ("", ""),
    ],
)
def test_job_of_restart_cycles(link: str, job: str, tmp_path: Path) -> None:
    """NVRx's launcher names each rank the link to the newest report."""
    assert nvrx_job_by({"NVRX_CURRENT_CYCLE_INFO": link}) == job
    writer = Writer(tmp_path, Identity(run="job"), phases=(), nvrx_job=job)
    assert Reader(writer.path).header.nvrx_job == job


def steps(path: Path) -> int:
    """Last step in a box."""
    return now(path).step


@pytest.mark.process
def test_earlier_attempts(tmp_path: Path) -> None:
    """The newest few of each rank are kept, whole."""
    for number in range(5):
        attempt(tmp_path, number)
    attempt(tmp_path, 4, rank=10, world=11)
    found = earlier_attempts.listed(tmp_path / "job")
    assert [(rank, number) for rank, number, _ in found] == [(0, 1), (0, 2), (0, 3)]
    assert [steps(path) for _, _, path in found] == [1, 2, 3]
    assert steps(tmp_path / "job" / "0.blackbox") == 4


@pytest.mark.process
def test_link(tmp_path: Path) -> None:
    """A link in the place of their folder leads to boxes of somebody else: none of them is the run's."""
    for number in range(2):
        attempt(tmp_path, number)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / earlier_attempts.FOLDER).symlink_to(tmp_path / "job" / earlier_attempts.FOLDER)
    (tmp_path / "named").symlink_to(tmp_path / "job")
    assert earlier_attempts.listed(tmp_path / "other") == []
    assert len(earlier_attempts.listed(tmp_path / "named")) == 1, "a person may name a link"


@pytest.mark.process
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


@pytest.mark.process
def test_gone_with_the_run(tmp_path: Path) -> None:
    """A sweep that removes the last box of a run removes those that are kept, too."""
    for number in range(2):
        attempt(tmp_path, number)
    with Folder.open(tmp_path) as boxes:
        sweep(boxes, kept_seconds=-1.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
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


@pytest.mark.process
def test_new_rank(tmp_path: Path) -> None:
    """A rank that is new here is of the attempt of those that live, which have replaced all older boxes."""
    attempt(tmp_path, 0)
    living = Writer(tmp_path, Identity(run="job", rank=0, world_size=2, attempt=3), phases=())
    assert attempt(tmp_path, rank=1, world=2) == 3
    living.unlock()
