"""Dumps as other versions, settings and people leave them: what they lack is no evidence against a rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.hang.dump_files import read_source
from rankwatch_diagnosis.hang.engine import diagnose
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from support.diagnosis.hang_jobs import Fault, HungJob, Shape, parsed

Dumps = dict[int, dict[str, Any]]


def hung(shape: Shape, rank: int) -> Dumps:
    """The rank sleeps, in the middle of a step."""
    job = HungJob(shape, 3)
    places = job.places(rank, "asleep")
    job.run(Fault("asleep", (rank,), places[len(places) // 2]))
    return job.dumps()


def judged(dumps: Dumps) -> HangVerdict:
    return diagnose([parsed(each, rank) for rank, each in dumps.items()])


def coalesced(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same calls, with each send and receive in a batch of its own, as `batch_isend_irecv` makes it."""
    found = []
    for entry in entries:
        if entry["is_p2p"]:
            found.append(entry | {"state": "scheduled", "retired": False})
            entry = entry | {"profiling_name": "nccl:coalesced", "input_sizes": [], "output_sizes": []}
        found.append(entry)
    return [entry | {"record_id": number} for number, entry in enumerate(found)]


@pytest.mark.parametrize("rank", range(8))
@pytest.mark.parametrize("batched", [False, True])
def test_sends_are_known_by_their_names_where_a_version_does_not_mark_them(rank: int, batched: bool) -> None:
    """Before `is_p2p` came, with sends of their own and with coalesced ones."""
    dumps = hung(Shape(2, 4), rank)
    marked = judged(dumps)
    for each in dumps.values():
        if batched:
            each["entries"] = coalesced(each["entries"])
        for entry in each["entries"]:
            del entry["is_p2p"]
    verdict = judged(dumps)
    assert (verdict.state, verdict.ranks) == (marked.state, marked.ranks) == (State.HANG, (rank,))


def test_parts_of_completed_coalesced_calls_are_no_waits_where_only_active_entries_are_dumped() -> None:
    """They stay scheduled for ever, and the entry that told their end is left out."""
    for rank in range(8):
        dumps = hung(Shape(2, 4), rank)
        for each in dumps.values():
            entries = coalesced(each["entries"])
            each["entries"] = [entry for entry in entries if entry["state"] != "completed"]
        assert judged(dumps).ranks == (rank,)


def test_status_without_entries_is_never_called_well() -> None:
    """Something is enqueued and not complete; nothing tells in which group."""
    dumps = hung(Shape(4), 2)
    for each in dumps.values():
        del each["entries"]
    verdict = judged(dumps)
    assert (verdict.state, verdict.ranks) == (State.INCONCLUSIVE, ())


@pytest.mark.parametrize(
    ("field", "value"),
    [("time_created_ns", "x"), ("record_id", None), ("collective_seq_id", 1.5), ("input_sizes", "x")],
)
def test_entries_that_are_not_understood_do_not_blame_the_rank_that_wrote_them(
    field: str, value: object
) -> None:
    """What it did call is unknown; the others still show who has not come."""
    dumps = hung(Shape(4), 2)
    for entry in dumps[1]["entries"]:
        entry[field] = value
    assert judged(dumps).ranks == (2,)


def test_a_member_that_no_dump_names_shifts_nobody_elses_place_in_the_group() -> None:
    """Without pg_config the members of a pipeline are those with entries; a lost dump leaves a hole."""
    for rank in range(4):
        dumps = hung(Shape(1, 4), rank)
        del dumps[(rank + 1) % 4]
        for each in dumps.values():
            del each["pg_config"], each["pg_status"]
        assert set(judged(dumps).ranks) <= {rank, (rank + 1) % 4}


def test_a_time_before_the_newest_entry_is_no_time() -> None:
    """Seconds since the start of a run, say: the dump is judged as one without a time."""
    dumps = hung(Shape(4), 2)
    for each in dumps.values():
        each["time_seconds"] = 12.5
    assert judged(dumps).ranks == (2,)


def test_a_rank_that_computes_between_two_snapshots_does_not_hang() -> None:
    """Nothing has waited for long, and it need not have enqueued anything."""
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


def test_json_of_every_plain_shape_is_understood(tmp_path: Path) -> None:
    """Lists and objects, with the rank as a key, inside, or around the snapshot."""
    for name, document in shapes(hung(Shape(4), 2)).items():
        path = tmp_path / "snapshots.json"
        path.write_text(json.dumps(document))
        assert diagnose(read_source(path).snapshots).ranks == (2,), name


def test_files_beside_the_dumps_are_not_taken_for_dumps(tmp_path: Path) -> None:
    """A log, a core and a record of TensorBoard have numbers in their names, too."""
    for rank, each in hung(Shape(4), 2).items():
        (tmp_path / f"rank_{rank}").write_text(json.dumps(each))
    for name in ("core.1234", "events.out.tfevents.1", "train_17.log"):
        (tmp_path / name).write_bytes(b"\x7f no dump")
    reading = read_source(tmp_path)
    assert (len(reading.snapshots), reading.broken) == (4, {})
    assert diagnose(reading.snapshots, broken=reading.broken).ranks == (2,)


def test_two_dumps_of_a_rank_that_are_called_alike_are_a_mistake(tmp_path: Path) -> None:
    """Nothing tells which of the two is meant."""
    for name in ("rank_1", "rank_01"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match="both dumps of rank 1"):
        read_source(tmp_path)
