"""The number of an attempt: the same on all nodes, and never twice for one run."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import pytest

from rankwatch.blackbox import layout
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.writer import Writer
from rankwatch.identity import MOST_ATTEMPTS, Identity, as_traceparent
from rankwatch.launchers import attempt_by, most_attempts_by, nvrx_job_by
from support.processes.python import python

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
import json, sys, rankwatch
with rankwatch.start() as run:
    for _ in range(2):
        with run.step(): pass
print(json.dumps(run.identity.attempt))
"""


def _attempt(directory: Path, **variables: str) -> int:
    usual = {"RANKWATCH_RUN": "job", "RANKWATCH_SUMMARY": "0", "RANK": "0", "WORLD_SIZE": "1"}
    return int(python(RANK, directory=directory, check=True, **{**usual, **variables}).stdout)


@pytest.mark.process
def test_node_that_torchrun_restarts_for_another_one(tmp_path: Path) -> None:
    """torchrun does not count a restart on a node on which no rank failed. The boxes there do."""
    node_that_failed, other_node = tmp_path / "a", tmp_path / "b"
    failed = [_attempt(node_that_failed, TORCHELASTIC_RESTART_COUNT=str(count)) for count in range(3)]
    other = [_attempt(other_node, TORCHELASTIC_RESTART_COUNT="0") for _ in range(3)]
    assert failed == other == [0, 1, 2]


@pytest.mark.process
def test_living_ranks_are_of_the_present_attempt(tmp_path: Path) -> None:
    """A rank that starts after its peers is of the same attempt."""
    peer = Writer(tmp_path, Identity(run="job", rank=1, world_size=2), phases=())
    assert _attempt(tmp_path) == 0
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
