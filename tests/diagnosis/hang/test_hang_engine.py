"""The hang engine on jobs that stand still: who is named, and when nobody is."""

from __future__ import annotations

import random

import pytest

from rankwatch_diagnosis.hang.dump_files import read_source
from rankwatch_diagnosis.hang.engine import diagnose
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from support.diagnosis.hang_jobs import Fault, HungJob, Shape, parsed
from support.paths import RECORDED

SHAPES = (
    Shape(4),
    Shape(8),
    Shape(4, 1, 2),
    Shape(3, 1, 4),
    Shape(2, 1, 2),
    Shape(4, 2),
    Shape(1, 4),
    Shape(1, 4, 2),
    Shape(2, 2, 4),
    Shape(3, 3, 3),
    Shape(4, 4, 2),
)
SEEDS = range(40)
REAL = RECORDED / "flight_recorder"


def drawn(kind: str, seed: int, **options: bool) -> tuple[HungJob, int]:
    """A job of random shape with this fault somewhere, run until it stands; and the rank at fault."""
    draw = random.Random(seed)
    while True:
        shape = draw.choice(SHAPES)
        job = HungJob(
            shape,
            seed,
            names=draw.choice(("megatron", "mesh")),
            lead=draw.choice((0, 0, 3, 12)),
            only_active=draw.random() < 0.3,
            **options,
        )
        rank = draw.randrange(shape.world)
        places = job.places(rank, kind)
        if places:
            job.run(Fault(kind, (rank,), draw.choice(places)))
            return job, rank


def judged(job: HungJob) -> HangVerdict:
    """The verdict on the dumps of a job."""
    return diagnose([parsed(document, rank) for rank, document in job.dumps().items()])


@pytest.mark.parametrize("kind", ["asleep", "killed", "loading", "device"])
def test_the_rank_that_stopped_is_named_and_no_victim(kind: str) -> None:
    """Through data-parallel, tensor-parallel and pipeline groups; whole stages are victims."""
    for seed in SEEDS:
        job, rank = drawn(kind, seed)
        verdict = judged(job)
        assert (verdict.state, verdict.ranks) == (State.HANG, (rank,)), (kind, seed, job.shape)


@pytest.mark.parametrize("kind", ["other", "size", "dtype"])
def test_a_call_that_does_not_fit_is_a_desync(kind: str) -> None:
    """The rank that differs is named; nobody where two differ and no other group tells who is right."""
    for seed in SEEDS:
        job, rank = drawn(kind, seed)
        verdict = judged(job)
        assert verdict.state is State.DESYNC, (kind, seed, job.shape)
        assert verdict.ranks in ((rank,), ()), (kind, seed, job.shape)
        if verdict.ranks == ():
            assert 2 in (job.shape.dp, job.shape.tp, job.shape.world), (kind, seed, job.shape)
        assert "mismatches" in verdict.evidence


def test_a_skipped_collective_never_accuses_another_rank() -> None:
    """Most are told; some can be read either way, and then nobody is named."""
    named = 0
    for seed in range(120):
        job, rank = drawn("skip", seed)
        verdict = judged(job)
        assert verdict.ranks in ((rank,), ()), (seed, job.shape)
        named += verdict.ranks == (rank,)
    assert named >= 90


@pytest.mark.parametrize("kind", ["asleep", "loading"])
def test_a_receive_posted_early_hides_a_culprit_and_accuses_nobody(kind: str) -> None:
    """It then seems to wait like its victims, in a circle; the verdict is right or inconclusive."""
    right = 0
    for seed in range(80):
        job, rank = drawn(kind, seed, receives_early=True)
        verdict = judged(job)
        expected = {(State.HANG, (rank,)), (State.INCONCLUSIVE, ())}
        assert (verdict.state, verdict.ranks) in expected, (kind, seed, job.shape)
        right += bool(verdict.ranks)
    assert right >= 50


def test_several_culprits_are_named_together() -> None:
    """Two ranks asleep in different tensor-parallel groups of one stage."""
    job = HungJob(Shape(4, 2, 2), 1)
    place = job.places(9, "asleep")[2]
    job.run(Fault("asleep", (9, 14), place))
    assert judged(job).ranks == (9, 14)


@pytest.mark.parametrize(
    ("case", "ranks"), [("gpu_error_1st", (12, 14)), ("lock_gil_1st", (9, 14))], ids=lambda each: str(each)
)
def test_real_dumps_give_the_ranks_in_which_the_fault_was_injected(case: str, ranks: tuple[int, ...]) -> None:
    """As the log of the injection beside the dumps says."""
    directory = REAL / case
    if not directory.is_dir():
        pytest.skip(f"{directory} is not on this machine")
    injected = (directory / "fault_injection.log").read_text().partition("]")[0].partition("[")[2]
    assert ranks == tuple(map(int, injected.split(",")))
    reading = read_source(directory)
    verdict = diagnose(reading.snapshots, broken=reading.broken)
    assert (verdict.state, verdict.ranks, verdict.missing_ranks) == (State.HANG, ranks, ())
    assert verdict.group is not None
    assert verdict.group.startswith("EXPERT_MODEL_PARALLEL_GROUP")


def test_a_rank_without_a_dump_is_named_only_where_it_explains_the_stall() -> None:
    """The dump of a victim may be lost as well."""
    job = HungJob(Shape(4, 1, 2), 3)
    job.run(Fault("asleep", (5,), job.places(5, "asleep")[4]))
    dumps = job.dumps()
    del dumps[2]
    verdict = diagnose([parsed(document, rank) for rank, document in dumps.items()])
    assert (verdict.ranks, verdict.missing_ranks) == ((5,), (2,))


def test_a_few_dumps_of_many_ranks_accuse_nobody() -> None:
    """Where most dumps are missing, their absence says nothing."""
    job = HungJob(Shape(8), 3)
    job.run(Fault("asleep", (5,), job.places(5, "asleep")[1]))
    dumps = job.dumps()
    few = [parsed(dumps[rank], rank) for rank in (0, 1)]
    verdict = diagnose(few)
    assert (verdict.state, verdict.ranks) == (State.INCONCLUSIVE, ())
    assert verdict.missing_ranks == (2, 3, 4, 5, 6, 7)


def test_a_job_at_its_end_is_ok() -> None:
    """Nothing pending, nothing to blame."""
    job = HungJob(Shape(4, 2), 3, lead=0)
    job.run(Fault("none", ()))
    assert judged(job) == diagnose([parsed(each, rank) for rank, each in job.dumps().items()])
    assert (judged(job).state, judged(job).ranks) == (State.OK, ())


def test_a_recent_operation_is_no_hang_where_the_snapshots_tell_their_time() -> None:
    """Half a second old: slow; a minute old: a hang."""
    job = HungJob(Shape(4), 3, lead=0)
    job.run(Fault("asleep", (2,), job.places(2, "asleep")[1]))
    dumps = job.dumps()
    newest = max(entry["time_created_ns"] for each in dumps.values() for entry in each["entries"]) / 1e9
    for later, state, ranks in ((0.5, State.SLOW, ()), (60.0, State.HANG, (2,))):
        timed = [parsed(each | {"time_seconds": newest + later}, rank) for rank, each in dumps.items()]
        verdict = diagnose(timed)
        assert (verdict.state, verdict.ranks) == (state, ranks)


def test_ranks_that_advance_between_two_snapshots_are_slow_and_not_hung() -> None:
    """The second snapshot has newer entries on every rank; the same snapshot twice has not."""
    early, late = (HungJob(Shape(4), 3, lead=0) for _ in range(2))
    places = early.places(2, "asleep")
    early.run(Fault("asleep", (2,), places[0]))
    late.run(Fault("asleep", (2,), places[1]))
    first, second = ([parsed(each, rank) for rank, each in job.dumps().items()] for job in (early, late))
    assert diagnose([*first, *second]).state is State.SLOW
    assert diagnose([*first, *first]).ranks == (2,)


def test_an_operation_that_everyone_came_to_blames_nobody() -> None:
    """The device or the network stands; the dumps cannot tell whose."""
    job = HungJob(Shape(4), 3, lead=0)
    job.run(Fault("none", ()))
    for rank in range(4):
        job.shown[rank] = job.enqueued[rank] - 1
    verdict = judged(job)
    assert (verdict.state, verdict.ranks) == (State.INCONCLUSIVE, ())
    assert verdict.operation == "all_reduce"
    assert "stands_together" in verdict.evidence
