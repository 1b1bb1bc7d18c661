"""Dumps of other versions, forms, backends and settings, and dumps with missing or odd fields."""

from __future__ import annotations

import copy
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
from support.diagnosis.hang_jobs import Fault, HungJob, Shape, hung_job, judged, parsed
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


def named(dumps: Dumps) -> tuple[State, tuple[int, ...]]:
    verdict = judged(dumps)
    return verdict.state, verdict.ranks


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


@pytest.mark.parametrize(
    "written",
    [
        numbers_as_text,
        entries_alone,
        gloo_sets_retired_only,
        groups_of_one_name,
        time_before_newest_entry,
        given_up_by_the_watchdog,
    ],
)
def test_other_form(dumps: Dumps, written: Callable[[Dump], None]) -> None:
    """However the recorders of the ranks write it down, the job is the same, and so is the verdict."""
    for each in dumps.values():
        written(each)
    assert named(dumps) == (State.HANG, (5,))


def test_rank_without_entries(dumps: Dumps) -> None:
    """Its status is keyed by a local number that only the entries of its peers explain."""
    dumps[5]["entries"] = []
    assert named(dumps) == (State.HANG, (5,))


def test_device_that_has_not_started(dumps: Dumps) -> None:
    """A device that has not begun is to blame where timing is on. All have enqueued the operation, all but
    one have started it."""
    job = HungJob(Shape(4), 3, lead=0)
    job.run(Fault("none", ()))
    timed = job.dumps()
    for rank, each in timed.items():
        each["entries"][-1] |= {"state": "scheduled" if rank == 1 else "started", "retired": False}
    assert named(timed) == (State.HANG, (1,))


@pytest.mark.parametrize("odd", [None, 7, "x", [], {}, {"record_id": 1}, {"process_group": [1]}])
def test_odd_entry_is_counted(dumps: Dumps, odd: object) -> None:
    """An entry that cannot be understood is counted and left out. The others still count."""
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
def test_odd_field_never_raises(dumps: Dumps, field: str, value: object) -> None:
    """A field of another type never raises. Whatever a hostile rank writes."""
    hostile = copy.deepcopy(dumps[1])
    for entry in hostile["entries"]:
        entry[field] = value
    dumps[1] = hostile
    judged(dumps)


@pytest.mark.parametrize("document", [None, [], 3, "x", {}, {"entries": 3}, {"entries": {}}])
def test_no_dump_is_refused(document: object) -> None:
    """What is no dump is refused with one sentence."""
    with pytest.raises(DumpError, match=r"holds|entries"):
        parsed(document, 0)


def test_mixed_versions() -> None:
    """Dumps of different versions of PyTorch are judged together. In a job with sends: an old one without
    status and types, one with numbers as text, a new one."""
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
    """JSON and pickle hold the same snapshot. The jobs have sends, calls that differ, and entries with and
    without recorded stacks."""
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


def test_real_dumps() -> None:
    """Real dumps are understood to the last entry. PyTorch itself wrote them."""
    if not REAL.is_dir():
        pytest.skip(f"{REAL} is not on this machine")
    dumps = [parse(path.read_bytes()) for path in sorted(REAL.glob("*/_dump_*"))]
    assert len(dumps) >= 28
    assert sum(each.skipped + snapshot_of(each, 0).skipped_entries for each in dumps) == 0
    assert sum(bool(each.entries) for each in dumps) >= 28


def hung(shape: Shape, rank: int, *, batched: bool = True) -> Dumps:
    """The rank sleeps, in the middle of a step."""
    job = HungJob(shape, 3, batched=batched)
    places = job.places(rank, "asleep")
    job.run(Fault("asleep", (rank,), places[len(places) // 2]))
    return job.dumps()


@pytest.mark.parametrize("rank", range(8))
@pytest.mark.parametrize("batched", [False, True])
def test_format_before_p2p(rank: int, batched: bool) -> None:
    """Formats before 2.0 have one kind of number and do not mark sends: their names do. With sends of their
    own and with batches."""
    dumps = hung(Shape(2, 4), rank, batched=batched)
    for each in dumps.values():
        each["version"] = "1.5"
        for entry in each["entries"]:
            entry["seq_id"] = entry.pop("collective_seq_id") + entry.pop("p2p_seq_id")
            del entry["is_p2p"], entry["op_id"]
    assert named(dumps) == (State.HANG, (rank,))


def test_active_only_batches() -> None:
    """Parts of completed batches are no waits where only active entries are dumped. They stay scheduled for
    ever, and the entry that shows their end is left out of such dumps."""
    for rank in range(8):
        dumps = hung(Shape(2, 4), rank)
        for each in dumps.values():
            each["entries"] = [entry for entry in each["entries"] if entry["state"] != "completed"]
        assert judged(dumps).ranks == (rank,)


def test_status_without_entries_is_inconclusive() -> None:
    """Status without entries is never called healthy. Something is enqueued and not complete; its group is
    unknown."""
    dumps = hung(Shape(4), 2)
    for each in dumps.values():
        del each["entries"]
    assert named(dumps) == (State.INCONCLUSIVE, ())


@pytest.mark.parametrize(
    ("field", "value"),
    [("time_created_ns", "x"), ("record_id", None), ("collective_seq_id", 1.5), ("input_sizes", "x")],
)
def test_garbled_entries_blame_nobody(field: str, value: object) -> None:
    """Entries that are not understood do not blame the rank that wrote them. What the rank called is unknown;
    the others still show which rank has not come."""
    dumps = hung(Shape(4), 2)
    for entry in dumps[1]["entries"]:
        entry[field] = value
    assert judged(dumps).ranks == (2,)


def test_unnamed_member_shifts_no_index() -> None:
    """A member that no dump names shifts no other member's index in the group. Without pg_config the members
    of a pipeline are those with entries; a lost dump leaves a hole."""
    for rank in range(4):
        dumps = hung(Shape(1, 4), rank)
        del dumps[(rank + 1) % 4]
        for each in dumps.values():
            del each["pg_config"], each["pg_status"]
        assert set(judged(dumps).ranks) <= {rank, (rank + 1) % 4}


def torchcomms(rank: int, *, asleep: int, steps: int = 5) -> dict[str, Any]:
    """The dump of a rank of four, of which the first two also have a communicator of their own. torchcomms,
    hooks/fr/FlightRecorder.cpp: `record` numbers all operations of the process with one counter from 0, and
    gives no status; `onPreHook` names them by backend. `TorchComm::postHook` comes as soon as the operation
    is issued, and `retire_id` lets go of its events: it stays `scheduled`, also once it is done."""
    dump = reply(ranks="[0, 1, 2, 3]")
    dump["pg_status"] = {}
    dump["pg_config"] = {
        name: {"name": name, "desc": "nccl", "ranks": ranks}
        for name, ranks in (("world", "[0, 1, 2, 3]"), ("pair", "[0, 1]"))
    }
    calls = [name for _ in range(steps) for name in (["pair"] if rank < 2 else []) + ["world"]]
    dump["entries"] = [
        recorder.entry(
            number,
            pg_id=0 if name == "world" else 1,
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
    """Its numbers and states cannot be compared between ranks: nobody is named, and the message says why. A
    rank without entries is named for no other reason."""
    dumps = {str(rank): torchcomms(rank, asleep=asleep, steps=5 * (rank != 2)) for rank in range(4)}
    file = tmp_path / "dumps.json"
    file.write_text(json.dumps(dumps))
    with pytest.raises(UserError, match="torchcomms numbers the operations of all groups together"):
        read_source(file)
    with pytest.raises(DumpError, match="torchcomms"):
        parse(recorder_pickle(dumps["0"]))


def test_computing_between_snapshots_is_slow() -> None:
    """A rank that computes between two snapshots does not hang. Nothing has waited for long, and it need not
    have enqueued anything."""
    dumps = hung(Shape(4), 2)
    newest = max(entry["time_created_ns"] for each in dumps.values() for entry in each["entries"]) / 1e9
    snapshots = [
        parsed(each | {"time_seconds": newest + later}, rank)
        for later in (0.1, 0.2)
        for rank, each in dumps.items()
    ]
    assert diagnose(snapshots).state is State.SLOW


def shapes(dumps: Dumps) -> dict[str, object]:
    """One job as several people would write it down."""
    named = {str(rank): each for rank, each in dumps.items()}
    listed = [each | {"rank": rank} for rank, each in dumps.items()]
    return {
        "a list": listed,
        "by rank": named,
        "by name": {f"rank_{rank}": each for rank, each in named.items()},
        "lists by rank": {rank: [each] for rank, each in named.items()},
        "one key around it": {"ranks": named},
        "a list under one key": {"snapshots": listed},
        "an object around each": [{"rank": rank, "dump": each} for rank, each in dumps.items()],
    }


def test_json_shapes(tmp_path: Path) -> None:
    """JSON of every plain shape is understood. Lists and objects, with the rank as a key, inside, or around
    the snapshot."""
    for name, document in shapes(hung(Shape(4), 2)).items():
        path = tmp_path / "snapshots.json"
        path.write_text(json.dumps(document))
        assert diagnose(read_source(path).snapshots).ranks == (2,), name


@pytest.mark.process
def test_other_files_are_ignored(tmp_path: Path) -> None:
    """Files beside the dumps are not taken for dumps. A log, a core and a record of TensorBoard have numbers
    in their names, too."""
    for rank, each in hung(Shape(4), 2).items():
        (tmp_path / f"rank_{rank}").write_text(json.dumps(each))
    for name in ("core.1234", "events.out.tfevents.1", "train_17.log"):
        (tmp_path / name).write_bytes(b"\x7f no dump")
    reading = read_source(tmp_path)
    assert (len(reading.snapshots), reading.broken) == (4, {})
    assert diagnose(reading.snapshots, broken=reading.broken).ranks == (2,)


def test_two_dumps_of_one_rank(tmp_path: Path) -> None:
    """Two dumps of one rank with names of the same pattern are a mistake. A mistake of the user: either may
    be meant."""
    for name in ("rank_1", "rank_01"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match="both dumps of rank 1"):
        read_source(tmp_path)
