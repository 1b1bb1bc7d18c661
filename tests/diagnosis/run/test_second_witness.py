"""Whether NCCL's flight recorders confirm the slow rank of a run: its peers wait for it, so its kernels are
short."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.simulation.black_boxes import write_job_boxes
from bench.simulation.job import Job, simulate
from bench.simulation.program import JobShape
from bench.simulation.workload import Fault
from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.report import lines
from rankwatch_diagnosis.run.verdict import RunVerdict
from rankwatch_diagnosis.run.witnesses import RECORDER_EVIDENCE, with_second_witness
from support.diagnosis.hang_jobs import parsed
from support.training.recorder import completed, reply

Milliseconds = Sequence[Sequence[float | None]]
"""Of each collective, by rank."""

FIXTURE = Path(__file__).parents[1] / "fixtures" / "h200_collective_milliseconds.json"
"""Operation and durations by rank, from the dumps of NCCL's recorders: 30 steps of DDP and of FSDP2 with four
ranks on one H200, where rank 2 computes 1.5 times as long."""
HEALTHY = (10.0, 10.0, 10.0, 10.0)
SLOW_2 = (50.0, 50.0, 10.0, 50.0)
RANK_2 = Fault(cause=Cause.SLOW_RANK, ranks=(2,), factor=1.2)
RANK_3 = Fault(cause=Cause.SLOW_RANK, ranks=(3,), factor=1.2)
DATA_PARALLEL = JobShape(data_parallel=4)
PIPELINE = JobShape(data_parallel=4, pipeline_parallel=2)


def recorded(kind: str) -> Milliseconds:
    """The durations on a real GPU."""
    return [row[1:] for row in json.loads(FIXTURE.read_text())[kind]]


def dumps(taken: Milliseconds, group: str) -> dict[int, dict[str, Any]]:
    """The recorders of the ranks."""
    ranks = range(len(taken[0]))
    found: dict[int, dict[str, Any]] = {}
    for rank in ranks:
        entries = [
            completed(index, durations[rank], process_group=["0", group])
            for index, durations in enumerate(taken)
        ]
        found[rank] = reply(*entries, ranks=str(list(ranks)))
        found[rank]["pg_config"]["0"]["desc"] = group
    return found


def write_boxes(directory: Path, fault: Fault, shape: JobShape) -> None:
    """The boxes of a simulated run with one collective a step."""
    table = simulate(Job(shape=shape, fault=fault, steps=100, seed=1)).table
    write_job_boxes(table, shape, directory, run="job", seed=1)


def verdict_of(
    directory: Path,
    taken: Milliseconds,
    *,
    fault: Fault = RANK_2,
    shape: JobShape = DATA_PARALLEL,
    group: str = "mesh_dp",
) -> RunVerdict:
    """The verdict about the boxes, with what recorders with these durations say to it."""
    write_boxes(directory, fault, shape)
    verdict = diagnose_run(directory)
    boxes = verdict.boxes
    snapshots = [parsed(document, rank) for rank, document in dumps(taken, group).items()]
    return replace(verdict, straggler=with_second_witness(boxes, snapshots, verdict.straggler))


def said(verdict: RunVerdict) -> Any:
    """What the witness says; None where it was not heard."""
    assert verdict.straggler is not None
    return verdict.straggler.evidence.get(RECORDER_EVIDENCE)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_agrees(kind: str, tmp_path: Path) -> None:
    """Durations of a real GPU confirm the rank that is slow there, and the report says so."""
    verdict = verdict_of(tmp_path, recorded(kind))
    assert verdict.straggler is not None
    assert (verdict.straggler.cause, verdict.straggler.ranks) == (Cause.SLOW_RANK, (2,))
    assert (said(verdict)["opinion"], said(verdict)["late_ranks"]) == ("agrees", [2])
    (line,) = (each for each in lines(verdict) if "the flight recorders agree" in each)
    assert "the others of mesh_dp (0) wait for rank 2: a collective takes " in line


@pytest.mark.process
def test_dumps_beside_boxes(tmp_path: Path) -> None:
    """Dumps that lie with the boxes are heard; what disagrees is the sentence of the diagnosis, too."""
    write_boxes(tmp_path, RANK_3, DATA_PARALLEL)
    folder = tmp_path / "flight_recorder"
    folder.mkdir()
    for rank, document in dumps(recorded("ddp"), "mesh_dp").items():
        (folder / f"rank_{rank}").write_text(json.dumps(document))
    assert said(diagnose_run(tmp_path))["opinion"] == "disagrees"


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_disagrees(kind: str, tmp_path: Path) -> None:
    """Where peers wait for rank 2, and local times show rank 3, nobody is named: both are shown."""
    verdict = verdict_of(tmp_path, recorded(kind), fault=Fault(cause=Cause.SLOW_RANK, ranks=(3,), factor=1.2))
    found = verdict.straggler
    assert found is not None
    assert (found.cause, found.ranks, found.causes[0].certain) == (Cause.INCONCLUSIVE, (), False)
    assert said(verdict)["opinion"] == "disagrees"
    (line,) = (each for each in lines(verdict) if each.startswith("slowdown:"))
    assert "inconclusive: by the flight recorders, the others of mesh_dp (0) wait for rank 2" in line
    assert "rank 3 is " in line


@pytest.mark.parametrize(
    ("taken", "opinion"),
    [
        ([HEALTHY] * 64, "none"),
        ([(10.0, 10.0, 10.0, 9.0)] * 64, "none"),
        ([(1.0, 1.0, 1.0, 0.1)] * 64, "none"),
        ([HEALTHY] * 60 + [(9000.0, 9000.0, 9000.0, 10.0)] * 4, "none"),
        ([(9000.0, 9000.0, 9000.0, 10.0)] * 4 + [SLOW_2] * 60, "agrees"),
        ([(10.0, 50.0, 10.0, 50.0)] * 64, "agrees"),
        ([(60.0, 60.0, 60.0, 60.0), (60.0, 60.0, 60.0, None)] * 32, "none"),
        ([SLOW_2, (60.0, 60.0, 60.0, 1e300)] * 32, "agrees"),
        ([(50.0, 10.0, 50.0, 50.0)] * 64, "disagrees"),
    ],
    ids=[
        "healthy",
        "within the spread of transfers",
        "far less than the slow rank costs",
        "one long step",
        "a slow start",
        "two late ranks",
        "a duration that is not known",
        "a duration that nobody measured",
        "another rank",
    ],
)
def test_opinion(taken: Milliseconds, opinion: str, tmp_path: Path) -> None:
    """Only a rank that is late in most of the run, for as long as the slow rank costs, is another one."""
    verdict = verdict_of(tmp_path, taken)
    assert said(verdict)["opinion"] == opinion
    assert verdict.straggler is not None
    assert verdict.straggler.ranks == (() if opinion == "disagrees" else (2,))


@pytest.mark.parametrize(
    "taken", [[(None,) * 4] * 64, [SLOW_2] * 31, [SLOW_2[:3]] * 64], ids=["untimed", "few", "no group"]
)
def test_not_heard(taken: Milliseconds, tmp_path: Path) -> None:
    """Without durations of enough collectives, or for another group than the box knows, nothing is said."""
    verdict = verdict_of(tmp_path, taken)
    assert verdict.straggler is not None
    assert verdict.straggler.ranks == (2,)
    assert said(verdict) is None or said(verdict)["opinion"] == "none"


def test_stages(tmp_path: Path) -> None:
    """A group over several pipeline stages says nothing: the schedule decides which stage comes last."""
    taken = [(10.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0)] * 64
    assert said(verdict_of(tmp_path, taken, shape=PIPELINE, group="default_pg")) is None


def test_other_causes(tmp_path: Path) -> None:
    """What does not name a rank is not confirmed by one."""
    fault = Fault(cause=Cause.NETWORK, factor=4.0)
    verdict = verdict_of(tmp_path, [SLOW_2] * 64, fault=fault)
    assert verdict.straggler is not None
    assert verdict.straggler.cause is not Cause.SLOW_RANK
    assert said(verdict) is None
