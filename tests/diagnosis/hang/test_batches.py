"""Hangs of pipelines and of uneven collectives, in the form in which ProcessGroupNCCL records them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from rankwatch_diagnosis.hang.verdict import State
from support.diagnosis.hang_jobs import Fault, HungJob, Shape, Uneven, hung_job, judged, named, parsed

KINDS = ("asleep", "killed", "loading", "device")
SEEDS = range(12)


def drawn(stages: int, seed: int, **options: Any) -> tuple[HungJob, int] | None:
    """A pipeline of so many stages with a fault on one rank, run until it stands; and the rank."""
    draw = random.Random(100 * seed + stages)
    shape = draw.choice((Shape(1, stages), Shape(2, stages), Shape(1, stages, 2)))
    drawn_options: dict[str, Any] = {
        "lead": draw.choice((0, 0, 3, 12)),
        "microbatches": draw.choice((2, 4, stages + 2)),
        "interleaved": draw.random() < 0.7,
    }
    job = HungJob(shape, seed, **drawn_options | options)
    kind, rank = draw.choice(KINDS), draw.randrange(shape.world)
    places = job.places(rank, kind)
    if not places:
        return None
    job.run(Fault(kind, (rank,), draw.choice(places)))
    return job, rank


def jobs(stages: int, **options: Any) -> Iterable[tuple[HungJob, int]]:
    return filter(None, (drawn(stages, seed, **options) for seed in SEEDS))


@pytest.mark.parametrize("stages", range(2, 9))
@pytest.mark.parametrize("messages_in", ["pp", "world"])
@pytest.mark.parametrize("batched", [False, True])
def test_pipeline(stages: int, messages_in: str, batched: bool) -> None:
    """The rank at fault is named and no other, whatever the schedule, with messages in either group."""
    for job, rank in jobs(stages, messages_in=messages_in, batched=batched):
        assert named(job.dumps()) == (State.HANG, (rank,)), (job.seed, job.shape)


def test_active_entries_only() -> None:
    """No innocent is named where the end of a batch is left out of the dumps, and most culprits are."""
    right = total = 0
    for stages in range(2, 9):
        for job, rank in jobs(stages, only_active=True):
            ranks = judged(job.dumps()).ranks
            assert ranks in ((rank,), ()), (job.seed, job.shape)
            right, total = right + bool(ranks), total + 1
    assert right >= 0.9 * total


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 13])
def test_ring_that_begins_inside(length: int) -> None:
    """A ring that begins between a batch's parts and their end, half a job's, names no innocent."""
    right = total = 0
    for stages in (2, 3, 4):
        for job, rank in jobs(stages, lead=0):
            dumps = job.dumps()
            for other in list(dumps)[::2]:
                dumps[other]["entries"] = dumps[other]["entries"][-length:]
            ranks = judged(dumps).ranks
            assert ranks in ((rank,), ()), (job.seed, job.shape)
            right, total = right + bool(ranks), total + 1
    assert right >= (0.9 if length > 3 else 0.5) * total


def test_batch_without_peers() -> None:
    """A rank that waits in a batch of which only the end is left waits for an unknown rank."""
    dumps = hung_job(Shape(1, 4), 3, 0, seed=1, lead=0).dumps()
    waits = dumps[2]["entries"][-1]
    assert (waits["profiling_name"], waits["state"]) == ("nccl:coalesced", "scheduled")
    dumps[2]["entries"] = [waits]
    assert 2 not in judged(dumps).ranks


def test_rank_inside_a_batch() -> None:
    """A rank that stands between the parts of a batch has launched none of them: its peers wait for it."""
    job = HungJob(Shape(1, 4), 1, lead=0, interleaved=True, microbatches=6)
    place = next(each for each in job.places(1, "asleep") if len(job.programs[1][each].messages) == 2)
    job.run(Fault("asleep", (1,), place))
    dumps = job.dumps()
    job.limit[1], job.enqueued[1] = place + 1, place + 1
    inside = job.dumps()[1]
    del inside["entries"][-1]  # the end of the batch
    assert len(inside["entries"]) == len(dumps[1]["entries"]) + 2
    assert named(dumps | {1: inside}) == (State.HANG, (1,))


def test_receive_from_any_source() -> None:
    """It waits for an unknown rank: FlightRecorderHook.cpp, `profilingName`, writes "recv 2<-?"."""
    job = HungJob(Shape(1, 4), 1, lead=0, batched=False)
    place = next(each for each in job.places(1, "asleep") if job.programs[1][each].name == "send")
    job.run(Fault("asleep", (1,), place))
    dumps = job.dumps()
    last = dumps[2]["entries"][-1]
    assert last["profiling_name"] == "nccl:recv 2<-1"
    last["profiling_name"] = "nccl:recv 2<-?"
    snapshot = parsed(dumps[2], 2)
    assert (snapshot.skipped_entries, len(snapshot.pending)) == (0, 1)
    assert 2 not in judged(dumps).ranks


@pytest.mark.parametrize("backend", ["nccl", "nccl2", "ncclx", "xccl"])
def test_any_backend(backend: str) -> None:
    """Names are `backend:operation` for any backend; some mark the end of a batch as `is_p2p`."""
    for job, rank in jobs(4):
        dumps = job.dumps()
        for entry in (entry for each in dumps.values() for entry in each["entries"]):
            entry["profiling_name"] = entry["profiling_name"].replace("nccl", backend)
            entry["is_p2p"] = entry["is_p2p"] or (backend == "xccl" and entry["input_sizes"] == [])
        assert judged(dumps).ranks == (rank,)


def nccl2(dump: dict[str, Any], *, only_active: bool) -> dict[str, Any]:
    """The dump as the backend nccl2 leaves it. nccl2/ProcessGroupNCCLBackend.cpp, `send` and `recv`: inside a
    batch they return a work that is complete, so hooks/FlightRecorderHook.cpp, `onPost`, retires their
    entries at once. Nothing stands for the batch."""
    numbers: Counter[object] = Counter()
    entries = []
    for entry in dump["entries"]:
        if entry["profiling_name"] == "nccl:coalesced":
            continue
        entry = entry | {"profiling_name": entry["profiling_name"].replace("nccl", "nccl2")}
        if entry["is_p2p"]:
            numbers[entry["pg_id"]] += 1
            entry |= {"p2p_seq_id": numbers[entry["pg_id"]], "state": "completed", "retired": True}
        if not (only_active and entry["retired"]):
            entries.append(entry)
    return dump | {"entries": entries}


@pytest.mark.parametrize("messages_in", ["pp", "world"])
@pytest.mark.parametrize("only_active", [False, True])
def test_pipeline_on_nccl2(only_active: bool, messages_in: str) -> None:
    """A rank that waits in a batch looks idle: no innocent is named, and the culprit if it alone is idle."""
    found: Counter[tuple[int, ...]] = Counter()
    for stages in range(2, 9):
        for job, rank in jobs(stages, messages_in=messages_in):
            dumps = {each: nccl2(dump, only_active=only_active) for each, dump in job.dumps().items()}
            ranks = judged(dumps).ranks
            assert ranks in ((rank,), ()), (job.seed, job.shape)
            found[ranks] += 1
    assert found[()] < 0.8 * found.total()


@pytest.mark.parametrize("shape", [Shape(4), Shape(4, 1, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_collectives_on_nccl2(shape: Shape, kind: str) -> None:
    """Without pipelines, whole dumps of nccl2 show as much as those of nccl."""
    for seed in SEEDS:
        rank = seed % shape.world
        job = spread(shape, seed, kind, rank)
        assert judged({each: nccl2(dump, only_active=False) for each, dump in job.dumps().items()}).ranks == (
            rank,
        ), seed


def spread(shape: Shape, seed: int, kind: str, rank: int, **options: Any) -> HungJob:
    """The fault strikes at another place with each seed."""
    places = HungJob(shape, seed, **options).places(rank, kind)
    return hung_job(shape, rank, seed % len(places), kind=kind, seed=seed, lead=seed % 4, **options)


@pytest.mark.parametrize("operation", Uneven)
@pytest.mark.parametrize("kind", ["asleep", "killed", "device"])
@pytest.mark.parametrize("only_active", [False, True])
def test_uneven_collective(operation: Uneven, kind: str, only_active: bool) -> None:
    """The rank that does not come to an uneven collective is named. Its parts have no state of their own."""
    for seed in SEEDS:
        job = spread(Shape(4, 1, 2), seed, kind, 5, only_active=only_active, uneven=operation)
        assert named(job.dumps()) == (State.HANG, (5,)), seed


def test_other_call_in_place_of_an_uneven_one() -> None:
    """A rank that calls another operation in place of an uneven collective is out of step."""
    job = HungJob(Shape(4, 1, 2), 3, lead=0, uneven=Uneven.ALLGATHER)
    place = next(each for each in job.places(5, "other") if job.programs[5][each].name == "ALLGATHER")
    job.run(Fault("other", (5,), place))
    assert named(job.dumps()) == (State.DESYNC, (5,))
