"""Dumps of other versions, forms, backends and settings, and dumps with missing or odd fields."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.flight_recorder.parse import DumpError, parse
from rankwatch_diagnosis.hang.dump_files import read_source
from rankwatch_diagnosis.hang.engine import diagnose
from rankwatch_diagnosis.hang.from_dump import snapshot_of
from rankwatch_diagnosis.hang.verdict import State
from support.diagnosis.hang_jobs import Shape, finished_job, hung_job, judged, named, parsed, timed
from support.paths import RECORDED
from support.training import recorder
from support.training.recorder import recorder_pickle, reply

REAL = RECORDED / "flight_recorder"
Dump = dict[str, Any]
Dumps = dict[int, Dump]


@pytest.fixture
def dumps() -> Dumps:
    """Rank 5 of a job of 4 x 1 x 2 sleeps."""
    return hung_job(Shape(4, 1, 2), 5, 4).dumps()


def numbers_as_text(dump: Dump) -> None:
    """PyTorch's JSON holds pg_status as text."""
    for status in dump["pg_status"].values():
        status.update({name: str(value) for name, value in status.items()})


def entries_alone(dump: Dump) -> None:
    """The oldest formats have neither status nor groups. Members are those who have entries in a group."""
    del dump["pg_status"], dump["pg_config"]


def gloo_sets_retired_only(dump: Dump) -> None:
    """Gloo leaves the state alone: it stays scheduled. Its pg_config has no name."""
    dump["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}
    for entry in dump["entries"]:
        entry |= {"state": "scheduled", "profiling_name": entry["profiling_name"].replace("nccl", "gloo")}


def groups_of_one_name(dump: Dump) -> None:
    """Split groups may share a name: those of different members are kept apart."""
    groups = dump["pg_config"].values()
    dump["pg_config"] = {("0" if each["desc"] == "default_pg" else each["desc"]): each for each in groups}
    for entry in dump["entries"]:
        name, description = entry["process_group"]
        entry["process_group"] = (name if description == "default_pg" else description, description)


def time_before_newest_entry(dump: Dump) -> None:
    """It may count from the start of the run. The dump is judged as one without a time."""
    dump["time_seconds"] = 12.5


def given_up_by_the_watchdog(dump: Dump) -> None:
    """What the watchdog of NCCL gave up is retired and still pending: only its state tells.
    FlightRecorder.hpp says so of `retired_`; the process lives on under NoHandling."""
    for entry in dump["entries"]:
        entry["retired"] = True


FORMS = (numbers_as_text, entries_alone, gloo_sets_retired_only, groups_of_one_name, time_before_newest_entry)


@pytest.mark.parametrize("written", [*FORMS, given_up_by_the_watchdog])
def test_other_form(dumps: Dumps, written: Callable[[Dump], None]) -> None:
    """However the recorders of the ranks write it down, the job is the same, and so is the verdict."""
    for each in dumps.values():
        written(each)
    assert named(dumps) == (State.HANG, (5,))


def test_rank_without_entries(dumps: Dumps) -> None:
    """Its status is keyed by a local number that only the entries of its peers explain."""
    dumps[5]["entries"] = []
    assert named(dumps) == (State.HANG, (5,))


def test_device_that_has_not_started() -> None:
    """Where timing is on, it is to blame: all have enqueued the operation, all but one have started it."""
    dumps = finished_job(Shape(4)).dumps()
    for rank, each in dumps.items():
        each["entries"][-1] |= {"state": "scheduled" if rank == 1 else "started", "retired": False}
    assert named(dumps) == (State.HANG, (1,))


@pytest.mark.parametrize("odd", [None, 7, "x", [], {}, {"record_id": 1}, {"process_group": [1]}])
def test_odd_entry_is_counted(dumps: Dumps, odd: object) -> None:
    """An entry that cannot be understood is counted and left out. The others still count."""
    for each in dumps.values():
        each["entries"].insert(0, odd)
    snapshots = [parsed(each, rank) for rank, each in dumps.items()]
    assert {each.skipped_entries for each in snapshots} == {1}
    verdict = diagnose(snapshots)
    assert (verdict.ranks, verdict.evidence["entries_skipped"]) == ((5,), 8)


@pytest.mark.parametrize(
    "field", ["collective_seq_id", "record_id", "time_created_ns", "input_sizes", "state"]
)
@pytest.mark.parametrize("value", [None, "x", [[["y"]]], {}, 1e300])
def test_odd_field_never_raises(dumps: Dumps, field: str, value: object) -> None:
    """Whatever a hostile rank writes."""
    for entry in dumps[1]["entries"]:
        entry[field] = value
    judged(dumps)


@pytest.mark.parametrize("document", [None, [], 3, "x", {}, {"entries": 3}, {"entries": {}}])
def test_no_dump_is_refused(document: object) -> None:
    """What is no dump is refused with one sentence."""
    with pytest.raises(DumpError, match=r"holds|entries"):
        parsed(document, 0)


def test_mixed_versions() -> None:
    """In a job with sends: an old dump without status and types, one with numbers as text, a new one."""
    dumps = hung_job(Shape(2, 2, 2), 5, 4).dumps()
    for rank, each in dumps.items():
        if rank % 3 == 0:
            each |= {"version": "2.2", "pg_status": {}}
            for entry in each["entries"]:
                del entry["input_dtypes"], entry["output_dtypes"]
        elif rank % 3 == 1:
            each["version"] = "2.10"
            numbers_as_text(each)
    verdict = judged(dumps)
    assert (verdict.state, verdict.ranks) == (State.HANG, (5,))
    assert "2.10, 2.2, 2.9" in str(verdict.evidence["notes"])


@pytest.mark.parametrize("kind", ["asleep", "device", "other", "size", "skip"])
@pytest.mark.parametrize("frames", [False, True])
def test_json_and_pickle_agree(kind: str, frames: bool) -> None:
    """Of jobs with sends, calls that differ, and entries with and without recorded stacks."""
    for rank, document in hung_job(Shape(2, 2, 2), 5, -1, kind=kind, steps=12).dumps().items():
        if frames:
            for entry in document["entries"]:
                entry["frames"] = [{"name": "step", "filename": "train.py", "line": 300 + rank}]
        expected = parsed(document, rank)
        assert expected.skipped_entries == 0
        forms = (recorder_pickle(document), pickle.dumps(document), json.dumps(document).encode())
        assert [snapshot_of(parse(data), rank) for data in forms] == [expected] * 3


def test_real_dumps() -> None:
    """Dumps that PyTorch itself wrote are understood to the last entry."""
    if not REAL.is_dir():
        pytest.skip(f"{REAL} is not on this machine")
    dumps = [parse(path.read_bytes()) for path in sorted(REAL.glob("*/_dump_*"))]
    assert sum(each.skipped + snapshot_of(each, 0).skipped_entries for each in dumps) == 0
    assert sum(bool(each.entries) for each in dumps) >= 28


def hung(shape: Shape, rank: int, *, batched: bool = True) -> Dumps:
    """The rank sleeps, in the middle of a step."""
    middle = len(hung_job(shape, rank, 0).places(rank, "asleep")) // 2
    return hung_job(shape, rank, middle, batched=batched).dumps()


@pytest.mark.parametrize("rank", range(8))
@pytest.mark.parametrize("batched", [False, True])
def test_format_before_p2p(rank: int, batched: bool) -> None:
    """Formats before 2.0 have one kind of number and do not mark sends: their names do, also in batches."""
    dumps = hung(Shape(2, 4), rank, batched=batched)
    for each in dumps.values():
        each["version"] = "1.5"
        for entry in each["entries"]:
            entry["seq_id"] = entry.pop("collective_seq_id") + entry.pop("p2p_seq_id")
            del entry["is_p2p"], entry["op_id"]
    assert named(dumps) == (State.HANG, (rank,))


@pytest.mark.parametrize("rank", range(8))
def test_active_only_batches(rank: int) -> None:
    """Parts of completed batches, scheduled for ever without the entry that shows their end, are no waits."""
    dumps = hung(Shape(2, 4), rank)
    for each in dumps.values():
        each["entries"] = [entry for entry in each["entries"] if entry["state"] != "completed"]
    assert judged(dumps).ranks == (rank,)


def test_status_without_entries_is_inconclusive() -> None:
    """It is never called healthy: something is enqueued and not complete; its group is unknown."""
    dumps = hung(Shape(4), 2)
    for each in dumps.values():
        del each["entries"]
    assert named(dumps) == (State.INCONCLUSIVE, ())


@pytest.mark.parametrize(
    ("field", "value"),
    [("time_created_ns", "x"), ("record_id", None), ("collective_seq_id", 1.5), ("input_sizes", "x")],
)
def test_garbled_entries_blame_nobody(field: str, value: object) -> None:
    """What their rank called is unknown; the others still show which rank has not come."""
    dumps = hung(Shape(4), 2)
    for entry in dumps[1]["entries"]:
        entry[field] = value
    assert judged(dumps).ranks == (2,)


@pytest.mark.parametrize("rank", range(4))
def test_unnamed_member_shifts_no_index(rank: int) -> None:
    """Without pg_config the members of a pipeline are those with entries; a lost dump leaves a hole."""
    dumps, lost = hung(Shape(1, 4), rank), (rank + 1) % 4
    del dumps[lost]
    for each in dumps.values():
        del each["pg_config"], each["pg_status"]
    assert set(judged(dumps).ranks) <= {rank, lost}


def torchcomms(rank: int, *, asleep: int, steps: int = 5) -> dict[str, Any]:
    """The dump of a rank of four, of which the first two also have a communicator of their own.

    torchcomms, hooks/fr/FlightRecorder.cpp: `record` numbers all operations of the process with one counter
    from 0, and gives no status; `onPreHook` names them by backend. `TorchComm::postHook` comes as soon as the
    operation is issued, and `retire_id` lets go of its events: it stays `scheduled`, also once it is done.
    """
    dump = reply(ranks="[0, 1, 2, 3]")
    members = {"world": "[0, 1, 2, 3]", "pair": "[0, 1]"}
    dump["pg_status"] = {}
    dump["pg_config"] = {
        name: {"name": name, "desc": "nccl", "ranks": each} for name, each in members.items()
    }
    calls = [name for _ in range(steps) for name in (["pair"] if rank < 2 else []) + ["world"]]
    dump["entries"] = [
        recorder.entry(
            number,
            pg_id=list(members).index(name),
            process_group=[name, "nccl"],
            collective_seq_id=number,
            p2p_seq_id=0,
            op_id=number,
            retired=True,
        )
        for number, name in enumerate(calls[: len(calls) - (rank == asleep)])
    ]
    return dump


@pytest.mark.parametrize("asleep", [0, 3])
def test_torchcomms(tmp_path: Path, asleep: int) -> None:
    """Its numbers and states cannot be compared between ranks: nobody is named, and the message says why."""
    dumps = {str(rank): torchcomms(rank, asleep=asleep, steps=5 * (rank != 2)) for rank in range(4)}
    file = tmp_path / "dumps.json"
    file.write_text(json.dumps(dumps))
    with pytest.raises(UserError, match="torchcomms numbers the operations of all groups together"):
        read_source(file)
    with pytest.raises(DumpError, match="torchcomms"):
        parse(recorder_pickle(dumps["0"]))


def test_computing_between_snapshots_is_slow() -> None:
    """A rank that computes between two snapshots need not have enqueued anything: nothing waits for long."""
    dumps = hung(Shape(4), 2)
    assert diagnose([*timed(dumps, 0.1), *timed(dumps, 0.2)]).state is State.SLOW


def shapes(dumps: Dumps) -> dict[str, object]:
    """One job as several people would write it down: the rank as a key, inside, or around the snapshot."""
    by_rank = {str(rank): each for rank, each in dumps.items()}
    listed = [each | {"rank": rank} for rank, each in dumps.items()]
    return {
        "a list": listed,
        "a list in the order of ranks": list(dumps.values()),
        "by rank": by_rank,
        "by name": {f"rank_{rank}": each for rank, each in by_rank.items()},
        "lists by rank": {rank: [each] for rank, each in by_rank.items()},
        "one key around it": {"ranks": by_rank},
        "a list under one key": {"snapshots": listed},
        "an object around each": [{"rank": rank, "dump": each} for rank, each in dumps.items()],
    }


def test_json_shapes(tmp_path: Path) -> None:
    """JSON of every plain shape is understood."""
    path = tmp_path / "snapshots.json"
    for name, document in shapes(hung(Shape(4), 2)).items():
        path.write_text(json.dumps(document))
        assert diagnose(read_source(path).snapshots).ranks == (2,), name


@pytest.mark.process
def test_other_files_are_ignored(tmp_path: Path) -> None:
    """A log, a core and a record of TensorBoard have numbers in their names, too."""
    for rank, each in hung(Shape(4), 2).items():
        (tmp_path / f"rank_{rank}").write_text(json.dumps(each))
    for name in ("core.1234", "events.out.tfevents.1", "train_17.log"):
        (tmp_path / name).write_bytes(b"\x7f no dump")
    reading = read_source(tmp_path)
    assert (len(reading.snapshots), reading.broken) == (4, {})
    assert diagnose(reading.snapshots, broken=reading.broken).ranks == (2,)


def test_two_dumps_of_one_rank(tmp_path: Path) -> None:
    """Of two dumps of one rank with names of the same pattern either may be meant: a mistake of the user."""
    for name in ("rank_1", "rank_01"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match="both dumps of rank 1"):
        read_source(tmp_path)
