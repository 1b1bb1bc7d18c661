"""Dumps of other versions, forms and backends of the recorder, and dumps with odd fields."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from rankwatch_agent.training.flight_recorder.parse import DumpError, parse
from rankwatch_diagnosis.hang.engine import diagnose
from rankwatch_diagnosis.hang.from_dump import snapshot_of
from rankwatch_diagnosis.hang.verdict import State
from support.diagnosis.hang_jobs import Fault, HungJob, Shape, parsed
from support.paths import RECORDED
from support.training.recorder_pickle import recorder_pickle

REAL = RECORDED / "flight_recorder"
Dumps = dict[int, dict[str, Any]]


@pytest.fixture
def dumps() -> Dumps:
    """Rank 5 of a job of 4 x 1 x 2 sleeps."""
    job = HungJob(Shape(4, 1, 2), 3)
    job.run(Fault("asleep", (5,), job.places(5, "asleep")[4]))
    return job.dumps()


def verdict_on(dumps: Dumps) -> tuple[State, tuple[int, ...]]:
    verdict = diagnose([parsed(each, rank) for rank, each in dumps.items()])
    return verdict.state, verdict.ranks


def test_numbers_written_as_text_are_numbers(dumps: Dumps) -> None:
    """PyTorch's JSON holds pg_status as text."""
    for each in dumps.values():
        for status in each["pg_status"].values():
            status.update({name: str(value) for name, value in status.items()})
    assert verdict_on(dumps) == (State.HANG, (5,))


def test_a_dump_without_status_and_groups_is_judged_by_its_entries(dumps: Dumps) -> None:
    """The oldest formats; members are then those who have entries in a group."""
    for each in dumps.values():
        del each["pg_status"], each["pg_config"]
    assert verdict_on(dumps) == (State.HANG, (5,))


def test_gloo_leaves_the_state_alone_and_sets_retired(dumps: Dumps) -> None:
    """Its pg_config has no name, its states stay at scheduled."""
    for each in dumps.values():
        each["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}
        for entry in each["entries"]:
            entry |= {"state": "scheduled", "profiling_name": entry["profiling_name"].replace("nccl", "gloo")}
    assert verdict_on(dumps) == (State.HANG, (5,))


def test_an_entry_of_a_coalesced_call_has_no_state_of_its_own(dumps: Dumps) -> None:
    """Sends and receives inside stay at scheduled for ever; the entry `coalesced` tells."""
    for each in dumps.values():
        first = each["entries"][0]
        part = first | {"is_p2p": True, "p2p_seq_id": 1, "collective_seq_id": 0, "state": "scheduled"}
        sent = part | {"profiling_name": "nccl:send 0->1", "retired": False}
        end = part | {"profiling_name": "nccl:coalesced", "retired": True, "state": "completed"}
        each["entries"] = [sent, end, *each["entries"]]
    assert verdict_on(dumps) == (State.HANG, (5,))


def test_groups_of_one_name_and_different_members_are_kept_apart(dumps: Dumps) -> None:
    """Split groups may share a name."""
    for each in dumps.values():
        renamed = {
            ("0" if config["desc"] == "default_pg" else config["desc"]): config
            for config in each["pg_config"].values()
        }
        each["pg_config"] = renamed
        for entry in each["entries"]:
            name, description = entry["process_group"]
            entry["process_group"] = (name if description == "default_pg" else description, description)
    assert verdict_on(dumps) == (State.HANG, (5,))


def test_a_rank_without_entries_is_placed_through_its_peers(dumps: Dumps) -> None:
    """Its status is keyed by a local number that only the entries of others explain."""
    dumps[5]["entries"] = []
    assert verdict_on(dumps) == (State.HANG, (5,))


def test_a_device_that_has_not_begun_is_to_blame_where_timing_is_on(dumps: Dumps) -> None:
    """All have enqueued the operation, all but one have started it."""
    job = HungJob(Shape(4), 3, lead=0)
    job.run(Fault("none", ()))
    timed = job.dumps()
    for rank, each in timed.items():
        each["entries"][-1] |= {"state": "scheduled" if rank == 1 else "started", "retired": False}
    assert verdict_on(timed) == (State.HANG, (1,))


@pytest.mark.parametrize("odd", [None, 7, "x", [], {}, {"record_id": 1}, {"process_group": [1]}])
def test_an_entry_that_cannot_be_understood_is_counted_and_left_out(dumps: Dumps, odd: object) -> None:
    """The others still count."""
    for each in dumps.values():
        each["entries"].insert(0, odd)
    snapshots = [parsed(each, rank) for rank, each in dumps.items()]
    assert {each.skipped_entries for each in snapshots} == {1}
    verdict = diagnose(snapshots)
    assert verdict.ranks == (5,)
    assert verdict.evidence["entries_skipped"] == 8


@pytest.mark.parametrize(
    "field", ["collective_seq_id", "record_id", "time_created_ns", "input_sizes", "state"]
)
@pytest.mark.parametrize("value", [None, "x", [[["y"]]], {}, 1e300])
def test_a_field_of_another_type_never_raises(dumps: Dumps, field: str, value: object) -> None:
    """Whatever a hostile rank writes."""
    hostile = copy.deepcopy(dumps[1])
    for entry in hostile["entries"]:
        entry[field] = value
    dumps[1] = hostile
    verdict_on(dumps)


@pytest.mark.parametrize("document", [None, [], 3, "x", {}, {"entries": 3}, {"entries": {}}])
def test_what_is_no_dump_is_refused(document: object) -> None:
    """One sentence says why."""
    with pytest.raises(DumpError, match=r"holds|entries"):
        parsed(document, 0)


def test_dumps_of_different_versions_of_pytorch_are_judged_together() -> None:
    """In a job with sends: an old one without status and types, one with numbers as text, a new one."""
    job = HungJob(Shape(2, 2, 2), 3)
    job.run(Fault("asleep", (5,), job.places(5, "asleep")[4]))
    dumps = job.dumps()
    for rank, each in dumps.items():
        if rank % 3 == 0:
            each |= {"version": "2.2", "pg_status": {}}
            for entry in each["entries"]:
                del entry["input_dtypes"], entry["output_dtypes"]
        elif rank % 3 == 1:
            each["version"] = "2.10"
            for status in each["pg_status"].values():
                status.update({name: str(value) for name, value in status.items()})
    verdict = diagnose([parsed(each, rank) for rank, each in dumps.items()])
    assert (verdict.state, verdict.ranks) == (State.HANG, (5,))
    assert "2.10, 2.2, 2.9" in str(verdict.evidence["notes"])


@pytest.mark.parametrize("kind", ["asleep", "device", "other", "size", "skip"])
@pytest.mark.parametrize("frames", [False, True])
def test_json_and_pickle_hold_the_same_snapshot(kind: str, frames: bool) -> None:
    """With sends, with calls that differ, with and without recorded stacks."""
    job = HungJob(Shape(2, 2, 2), 3, steps=12)
    job.run(Fault(kind, (5,), job.places(5, kind)[-1]))
    for rank, document in job.dumps().items():
        if frames:
            for entry in document["entries"]:
                entry["frames"] = [{"name": "step", "filename": "train.py", "line": 300 + rank}]
        expected = parsed(document, rank)
        assert expected.skipped_entries == 0
        forms = (recorder_pickle(document), pickle.dumps(document), json.dumps(document).encode())
        assert [snapshot_of(parse(data), rank) for data in forms] == [expected] * 3


def test_real_dumps_are_understood_to_the_last_entry() -> None:
    """As PyTorch wrote them."""
    if not REAL.is_dir():
        pytest.skip(f"{REAL} is not on this machine")
    dumps = [parse(path.read_bytes()) for path in sorted(REAL.glob("*/_dump_*"))]
    assert len(dumps) >= 28
    assert sum(each.skipped + snapshot_of(each, 0).skipped_entries for each in dumps) == 0
    assert sum(bool(each.entries) for each in dumps) >= 28
