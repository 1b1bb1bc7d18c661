"""Simulated hangs: which ranks stop, which wait, and what their recorders show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.simulation.hangs.fault import DESYNC, HangFault, HangKind, Naming, Plane
from rankwatch_diagnosis.simulation.hangs.job import HangJob, SimulatedHang, simulate_hang
from rankwatch_diagnosis.simulation.hangs.snapshots import Recorder
from rankwatch_diagnosis.simulation.shape import JobShape

SHAPE = JobShape(data_parallel=4, pipeline_parallel=2, tensor_parallel=2)
FAULTY = 5


def faults() -> Iterator[HangFault]:
    for kind in HangKind:
        for plane in Plane:
            if kind is not HangKind.NONE and not (plane is Plane.PIPELINE and kind in DESYNC):
                yield HangFault(kind=kind, ranks=(FAULTY,), plane=plane)


def hang(fault: HangFault, **recorder: Any) -> SimulatedHang:
    return simulate_hang(HangJob(shape=SHAPE, fault=fault, recorder=Recorder(**recorder)))


def pending(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    """What has not completed; of a batch its message, whose state the entry after it holds."""
    entries = snapshot["entries"]
    messages = [None, *(entry if entry["is_p2p"] else None for entry in entries)]
    return [
        message or entry
        for message, entry in zip(messages, entries, strict=False)
        if entry["state"] != "completed" and not entry["is_p2p"]
    ]


@pytest.mark.parametrize("fault", tuple(faults()), ids=lambda fault: f"{fault.kind}-{fault.plane}")
@pytest.mark.parametrize("run_ahead", [0, 4])
def test_one_rank_stops_the_job(fault: HangFault, run_ahead: int) -> None:
    """Every other rank waits for ever. A stopped rank has nothing pending; a desynchronised one waits."""
    done = hang(fault, run_ahead=run_ahead)
    desync = fault.kind in DESYNC
    assert done.truth.state == ("desync" if desync else "hang")
    assert done.truth.ranks == (FAULTY,)
    assert done.truth.blocked_ranks == (16 if desync else 15)
    missing = (FAULTY,) if fault.kind is HangKind.KILLED else ()
    assert done.truth.missing_ranks == missing
    assert set(done.snapshots) == set(range(16)) - set(missing)
    for rank, snapshot in done.snapshots.items():
        receives_or_reduces = [each for each in pending(snapshot) if "send" not in each["profiling_name"]]
        assert bool(receives_or_reduces) == (rank != FAULTY or desync)


def test_healthy_job() -> None:
    """No entry is pending, and enqueued equals completed in every group."""
    done = hang(HangFault(kind=HangKind.NONE, ranks=()))
    assert (done.truth.state, done.truth.ranks, done.truth.blocked_ranks) == ("ok", (), 0)
    for snapshot in done.snapshots.values():
        assert not pending(snapshot)
        for status in snapshot["pg_status"].values():
            assert status["last_enqueued_collective"] == status["last_completed_collective"]


def test_peers_of_a_sleeper() -> None:
    """They wait in its group, one sequence number further than it got."""
    done = hang(HangFault(ranks=(FAULTY,), plane=Plane.DATA))
    group = done.truth.group
    peers = [rank for rank in (1, 3, 7) if rank != FAULTY]
    (last,) = {
        max(entry["collective_seq_id"] for entry in done.snapshots[rank]["entries"] if of(entry, group))
        for rank in peers
    }
    own = [entry for entry in done.snapshots[FAULTY]["entries"] if of(entry, group)]
    assert max(entry["collective_seq_id"] for entry in own) == last - 1
    for rank in peers:
        (waiting,) = pending(done.snapshots[rank])
        assert (waiting["collective_seq_id"], waiting["profiling_name"]) == (last, "nccl:all_reduce")


def of(entry: dict[str, Any], group: str | None) -> bool:
    """True if an entry belongs to the group."""
    return bool(entry["process_group"][0] == group)


@pytest.mark.parametrize(
    ("kind", "field"), [(HangKind.OTHER_SIZE, "input_sizes"), (HangKind.OTHER_OPERATION, "profiling_name")]
)
@pytest.mark.parametrize("plane", [Plane.DATA, Plane.TENSOR, Plane.WORLD])
def test_desync(kind: HangKind, field: str, plane: Plane) -> None:
    """The rank differs from its peers at the sequence number at which the group stands."""
    done = hang(HangFault(kind=kind, ranks=(FAULTY,), plane=plane))
    number = {
        entry["collective_seq_id"] for entry in pending(done.snapshots[FAULTY]) if of(entry, done.truth.group)
    }
    calls = {
        rank: str(entry[field])
        for rank, snapshot in done.snapshots.items()
        for entry in snapshot["entries"]
        if of(entry, done.truth.group) and {entry["collective_seq_id"]} == number
    }
    own = calls.pop(FAULTY)
    assert calls
    assert own not in calls.values()


def test_skipped_bucket() -> None:
    """The rank calls the second bucket where its peers call the first."""
    done = hang(HangFault(kind=HangKind.SKIP, ranks=(FAULTY,), plane=Plane.DATA))
    sizes = {rank: pending(done.snapshots[rank])[0]["input_sizes"] for rank in (1, 3, 5, 7)}
    assert sizes.pop(5) == [[5_242_880]]
    assert set(map(str, sizes.values())) == {"[[6553600]]"}


def test_skipped_last_collective() -> None:
    """The rank has finished with nothing pending, so it looks like one that stopped."""
    fault = HangFault(kind=HangKind.SKIP, ranks=(FAULTY,), plane=Plane.WORLD, step=5)
    done = hang(fault)
    assert (done.truth.state, done.truth.ranks, done.truth.blocked_ranks) == ("hang", (FAULTY,), 15)
    assert not pending(done.snapshots[FAULTY])


def test_several_faulty_ranks() -> None:
    """Two ranks of different pipelines stop."""
    done = hang(HangFault(kind=HangKind.STUCK_DATA, ranks=(2, 13)))
    assert done.truth.ranks == (2, 13)
    assert done.truth.blocked_ranks == 14
    assert not pending(done.snapshots[2])


def test_ring() -> None:
    """It keeps the newest entries, and record ids count the ones before."""
    fault = HangFault(ranks=(FAULTY,))
    whole, short = hang(fault).snapshots[0], hang(fault, entries=5).snapshots[0]
    assert short["entries"] == whole["entries"][-5:]
    assert short["pg_status"] == whole["pg_status"]
    active = hang(fault, only_active=True).snapshots[0]
    assert active["entries"] == [entry for entry in whole["entries"] if entry["state"] != "completed"]


def test_messages() -> None:
    """A message is a part without a state and the entry that closes it, with its numbers and no tensors.

    ProcessGroupNCCL.cpp, `pointToPoint` and `endCoalescing`.
    """
    entries = hang(HangFault(ranks=(FAULTY,))).snapshots[0]["entries"]
    parts = [index for index, entry in enumerate(entries) if entry["is_p2p"]]
    assert parts
    for index in parts:
        part, end = entries[index : index + 2]
        assert (part["state"], part["retired"], end["profiling_name"]) == (
            "scheduled",
            False,
            "nccl:coalesced",
        )
        for name in ("collective_seq_id", "p2p_seq_id", "op_id", "process_group"):
            assert part[name] == end[name]
        assert end["input_sizes"] == end["output_sizes"] == []
    assert [entry["record_id"] for entry in entries] == list(range(len(entries)))


def test_run_ahead() -> None:
    """The host queues more, but waits for the loss at the end of each step."""
    fault = HangFault(ranks=(FAULTY,), plane=Plane.TENSOR)
    behind, ahead = hang(fault).snapshots[4], hang(fault, run_ahead=4).snapshots[4]
    assert len(pending(ahead)) == len(pending(behind)) + 4
    far = hang(HangFault(ranks=(FAULTY,), plane=Plane.WORLD), run_ahead=50).snapshots[15]
    assert len(pending(far)) == 1


def test_group_names() -> None:
    """Megatron and device mesh differ in descriptions only."""
    job = HangJob(shape=SHAPE, fault=HangFault(ranks=(FAULTY,)))
    mesh = simulate_hang(replace(job, naming=Naming.DEVICE_MESH)).snapshots[0]["pg_config"]
    megatron = simulate_hang(job).snapshots[0]["pg_config"]
    assert {name: each["ranks"] for name, each in mesh.items()} == {
        name: each["ranks"] for name, each in megatron.items()
    }
    assert {each["desc"] for each in mesh.values()} == {"default_pg", "mesh_dp", "mesh_tp", "mesh_pp"}


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (HangFault(ranks=()), "fault sleep needs ranks"),
        (HangFault(ranks=(16,)), "rank is 16, expected 0 to 15"),
        (HangFault(ranks=tuple(range(16))), "some of the ranks, not all"),
        (HangFault(step=6), "step is 6, expected 0 to 5"),
        (HangFault(occurrence=-1), "occurrence is -1, expected at least 0"),
        (HangFault(kind=HangKind.SKIP, plane=Plane.PIPELINE), "affects collectives, not messages"),
    ],
)
def test_impossible_hang(fault: HangFault, sentence: str) -> None:
    """It is refused in one sentence before anything runs."""
    with pytest.raises(UserError, match=sentence):
        simulate_hang(HangJob(shape=SHAPE, fault=fault))


def test_plane_without_operations() -> None:
    """A job with one shard has no tensor-parallel collectives."""
    with pytest.raises(UserError, match="plane is tensor, which this job has no operation on"):
        simulate_hang(HangJob(shape=JobShape(), fault=HangFault(plane=Plane.TENSOR)))
