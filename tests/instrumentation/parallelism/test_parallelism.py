"""Data, sharded, tensor, pipeline and hybrid parallel training of the reference model, and rare collectives.

The records of the black box are compared with gloo's own flight recorder. It has no sends and receives, so
those are compared with the calls of the process group.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rankwatch.members import members_text
from rankwatch_agent.training.boxes.follower import RankFollower
from rankwatch_agent.training.boxes.totals import RankTotals
from rankwatch_agent.training.steps.assembly import SETTLE_SECONDS, StepAssembler
from support.jobs.forked_ranks import shared_ranks

pytestmark = pytest.mark.process

JOB = Path(__file__).with_name("job.py")
RANKS = range(4)
COLLECTIVES = (
    "data parallel", "sharded", "tensor parallel", "sharded and tensor parallel", "replicated shards",
    "every collective", "objects", "functional", "subgroups", "failures",
)  # fmt: skip
POINT_TO_POINT = ("pipeline, GPipe", "pipeline, 1F1B", "sends and receives", "victim")

Report = dict[str, Any]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    """The report of each rank, after all cases have run in one job."""
    c10d = pytest.importorskip("torch._C._distributed_c10d")
    if not hasattr(c10d, "_dump_fr_trace_json"):
        pytest.skip("this torch has no flight recorder for gloo")
    directory = tmp_path_factory.mktemp("parallelism")
    own = {"RANKWATCH_DIR": str(directory), "RANKWATCH_RUN": "job", "TORCH_FR_BUFFER_SIZE": "20000"}
    log = directory / "log"
    assert shared_ranks().run([str(JOB)], {**os.environ, **own}, ranks=4, log=log) == [0] * 4, log.read_text()
    assert "rankwatch could not" not in log.read_text(), log.read_text()
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in RANKS]


def by_group(case: Report) -> dict[tuple[str, str], list[str]]:
    """(group, members) -> operations in their order, from the black box."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for each in case["seen"]:
        if not each["point_to_point"]:
            found[each["group"], each["members"]].append((each["number"], each["operation"]))
    return {group: [operation for _, operation in sorted(seen)] for group, seen in found.items()}


def truth_by_group(case: Report) -> dict[tuple[str, str], list[str]]:
    """(group, members) -> operations in their order, from gloo's flight recorder."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for each in case["truth"]:
        name = each["operation"].removeprefix("gloo:").removeprefix("sparse_")
        found[each["group"], members_text(each["ranks"])].append(name)
    return dict(found)


def as_gloo_runs(groups: dict[tuple[str, str], list[str]]) -> dict[tuple[str, str], list[str]]:
    """Convert operations to what gloo's recorder shows: it runs a reduce-scatter as an all-reduce, and two
    groups with the same label and members have the same name."""
    merged: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (group, members), operations in groups.items():
        label = group.partition(" #")[0]
        merged[label, members] += ["all_reduce" if each == "reduce_scatter" else each for each in operations]
    return dict(merged)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(job: list[Report], name: str, rank: int) -> None:
    """Each is recorded once, in the order of its group and with its members. Nothing else is recorded."""
    case = job[rank][name]
    assert len(case["truth"]) > 1 or name == "failures"
    assert as_gloo_runs(by_group(case)) == truth_by_group(case)
    assert not any(each["point_to_point"] for each in case["seen"])


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", POINT_TO_POINT)
def test_sends_and_receives(job: list[Report], name: str, rank: int) -> None:
    """Each is recorded once and as blocking, also those of pipeline schedules and those nobody waits for."""
    case = job[rank][name]
    found = [each for each in case["seen"] if each["point_to_point"]]
    assert Counter(each["operation"] for each in found) == Counter(case["calls"])
    assert all(each["blocking"] and not each["failed"] for each in found)
    assert as_gloo_runs(by_group(case)) == truth_by_group(case)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", ["pipeline, GPipe", "pipeline, 1F1B"])
def test_pipeline_schedule(job: list[Report], name: str, rank: int) -> None:
    """It sends and receives one activation or gradient per microbatch and neighbour."""
    case = job[rank][name]
    activations, size = case["facts"]["activations"], case["facts"]["bytes"]
    for operation in ("send", "recv"):
        found = [each for each in case["seen"] if each["operation"] == operation and each["bytes"] == size]
        groups = [(each["group"].partition(" #")[0], each["members"]) for each in found]
        assert groups == [("pipeline", "0-3")] * activations


@pytest.mark.parametrize("rank", RANKS)
def test_numbers(job: list[Report], rank: int) -> None:
    """The numbers of a group's operations have no gaps. Collectives are numbered apart from sends and
    receives. The tables show the number of collectives."""
    report = job[rank]
    numbers: dict[tuple[str, str, bool], list[int]] = defaultdict(list)
    for case in (*COLLECTIVES, *POINT_TO_POINT, "slow rank"):
        for each in report[case]["seen"]:
            numbers[each["group"], each["members"], each["point_to_point"]].append(each["number"])
    for group, found in numbers.items():
        assert sorted(found) == list(range(len(found))), group
    for row in report["tables"]:
        assert row["enqueued"] == len(numbers[row["name"], row["members"], False]), row
        assert row["size"] > 1
        assert row["oldest"] == 0.0, row
    assert report["errors"] == 0


def test_groups_with_one_label(job: list[Report]) -> None:
    """Their members distinguish them, or else a number after the label. A group that is created again
    keeps its row."""
    seen = by_group(job[0]["subgroups"])
    assert {group for group in seen if group[0] != "default_pg"} == {
        ("pair", "0-1"), ("pair", "0,2"), ("twin", "0-3"), ("twin #2", "0-3"), ("again", "0-3"),
    }  # fmt: skip
    assert len(seen["again", "0-3"]) == 2
    assert [row["members"] for row in job[3]["tables"] if row["name"] == "mesh_tensor"] == ["2-3"]


def test_failed_collective(job: list[Report]) -> None:
    """A collective whose peer never joins is recorded as failed. A refused collective leaves no record."""
    (failed,) = [each for each in job[0]["failures"]["seen"] if each["failed"]]
    assert (failed["group"], failed["members"], failed["operation"]) == ("short", "0-1", "all_reduce")
    assert not any(each["failed"] for rank in (1, 2, 3) for each in job[rank]["failures"]["seen"])


@pytest.mark.parametrize("rank", RANKS)
def test_durations(job: list[Report], rank: int) -> None:
    """Every collective with a wait has a duration, even a reduce-scatter of gloo that only C++ waits for."""
    for name in ("sharded", "tensor parallel", "sharded and tensor parallel", "functional"):
        assert not any(each["untimed"] for each in job[rank][name]["seen"]), name
    found = [each for each in job[rank]["functional"]["seen"] if each["operation"] == "reduce_scatter"]
    assert len(found) == 3
    assert all(each["blocking"] or each["start"] < each["waited"] < each["end"] for each in found)
    assert [each["blocking"] for each in found].count(False) == 2


def test_slow_rank(job: list[Report]) -> None:
    """Only the local time of the slow rank includes the delay; for the others it is communication. Each phase
    of tensor parallel training has several waits."""
    facts = job[0]["slow rank"]["facts"]
    slept = facts["slept"]
    steps = [steps_of(each["box"]) for each in job]
    assert [each.steps for each in steps] == [facts["steps"]] * len(job)
    slow = steps.pop(facts["slow"])
    assert slow.local_seconds > slept
    # Compared in the phase in which it was always last: in the others the machine may delay any rank.
    of_forward = [slow.phase_seconds["forward"] - each.phase_seconds["forward"] for each in steps]
    assert all(more > 0.5 * slept for more in of_forward), of_forward
    assert all(each.phase_seconds["communication"] > 0.5 * slept for each in steps)


def steps_of(box: str) -> StepAssembler:
    """The rank as the node agent sees it, after the end of its job."""
    totals = RankTotals(lambda _: None, max_names=1000)
    with closing(RankFollower(Path(box), totals)) as follower:
        follower.poll(time.monotonic())
        totals.steps.settle(time.monotonic() + 2 * SETTLE_SECONDS, time.monotonic())
    return totals.steps


def test_receive(job: list[Report]) -> None:
    """It starts when the thread begins to wait, because the time after posting is the rank's own work. During
    the wait the black box shows its start."""
    (received,) = [each for each in job[1]["victim"]["seen"] if each["operation"] == "recv"]
    waiter, sender = job[1]["victim"]["facts"], job[0]["victim"]["facts"]
    assert waiter["posted"] < waiter["waits"] <= received["start"] < sender["sent"] < received["end"]
    assert sender["oldest"] == [received["start"]]
