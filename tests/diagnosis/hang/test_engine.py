"""The verdict on jobs that hang or are out of step: which ranks are named, and when none is."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rankwatch_diagnosis.hang.dump_files import read_source
from rankwatch_diagnosis.hang.engine import diagnose
from rankwatch_diagnosis.hang.verdict import State
from support.diagnosis.hang_jobs import Fault, HungJob, Shape, hung_job, judged, parsed
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
LARGER_SHAPES = (
    Shape(8),
    Shape(4, 1, 2),
    Shape(3, 1, 4),
    Shape(4, 2),
    Shape(2, 2, 4),
    Shape(3, 3, 3),
    Shape(4, 4, 2),
)


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


@pytest.mark.parametrize("kind", ["asleep", "killed", "loading", "device"])
def test_stopped_rank_is_named(kind: str) -> None:
    """The rank that stopped is named, and no victim is. Through data-parallel, tensor-parallel and pipeline
    groups; whole stages are victims."""
    for seed in SEEDS:
        job, rank = drawn(kind, seed)
        verdict = judged(job.dumps())
        assert (verdict.state, verdict.ranks) == (State.HANG, (rank,)), (kind, seed, job.shape)


@pytest.mark.parametrize("kind", ["other", "size", "dtype"])
def test_mismatched_call_is_a_desync(kind: str) -> None:
    """A call that does not match its peers' is a desync. The rank that differs is named; none where two
    differ and no other group shows which is right."""
    for seed in SEEDS:
        job, rank = drawn(kind, seed)
        verdict = judged(job.dumps())
        assert verdict.state is State.DESYNC, (kind, seed, job.shape)
        assert verdict.ranks in ((rank,), ()), (kind, seed, job.shape)
        if verdict.ranks == ():
            assert 2 in (job.shape.dp, job.shape.tp, job.shape.world), (kind, seed, job.shape)
        assert "mismatches" in verdict.evidence


def test_skipped_collective() -> None:
    """A skipped collective never blames another rank. Some cases can be read either way, and then none is
    named."""
    named = 0
    for seed in range(120):
        job, rank = drawn("skip", seed)
        verdict = judged(job.dumps())
        assert verdict.ranks in ((rank,), ()), (seed, job.shape)
        named += verdict.ranks == (rank,)
    assert named >= 90


@pytest.mark.parametrize("kind", ["asleep", "loading"])
def test_receive_posted_early(kind: str) -> None:
    """A receive that is posted early hides the root cause and blames nobody. The root cause seems to wait
    like its victims, in a cycle; the verdict is right or inconclusive."""
    right = 0
    for seed in range(80):
        job, rank = drawn(kind, seed, receives_early=True)
        verdict = judged(job.dumps())
        expected = {(State.HANG, (rank,)), (State.INCONCLUSIVE, ())}
        assert (verdict.state, verdict.ranks) in expected, (kind, seed, job.shape)
        right += bool(verdict.ranks)
    assert right >= 50


def test_several_root_causes() -> None:
    """Several root causes are named together. Two ranks asleep in different tensor-parallel groups of one
    stage."""
    job = HungJob(Shape(4, 2, 2), 1)
    place = job.places(9, "asleep")[2]
    job.run(Fault("asleep", (9, 14), place))
    assert judged(job.dumps()).ranks == (9, 14)


@pytest.mark.process
@pytest.mark.parametrize(
    ("case", "ranks"), [("gpu_error_1st", (12, 14)), ("lock_gil_1st", (9, 14))], ids=lambda each: str(each)
)
def test_real_injected_faults(case: str, ranks: tuple[int, ...]) -> None:
    """Real dumps give the ranks in which the fault was injected. The log of the injection lies beside the
    dumps."""
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


def test_missing_dump_of_a_victim() -> None:
    """A rank without a dump is named only where it explains the stall. The dump of a victim may be lost as
    well."""
    dumps = hung_job(Shape(4, 1, 2), 5, 4).dumps()
    del dumps[2]
    verdict = judged(dumps)
    assert (verdict.ranks, verdict.missing_ranks) == ((5,), (2,))


def test_few_dumps_are_inconclusive() -> None:
    """A few dumps of many ranks blame nobody. Where most dumps are missing, their absence proves nothing."""
    dumps = hung_job(Shape(8), 5, 1).dumps()
    few = [parsed(dumps[rank], rank) for rank in (0, 1)]
    verdict = diagnose(few)
    assert (verdict.state, verdict.ranks) == (State.INCONCLUSIVE, ())
    assert verdict.missing_ranks == (2, 3, 4, 5, 6, 7)


def test_finished_job_is_ok() -> None:
    """A job at its end is ok. Nothing is pending, so there is nobody to blame."""
    job = HungJob(Shape(4, 2), 3, lead=0)
    job.run(Fault("none", ()))
    verdict = judged(job.dumps())
    assert (verdict.state, verdict.ranks) == (State.OK, ())


def test_recent_operation_is_slow() -> None:
    """A recent operation is no hang where the snapshots hold their time. Half a second old: slow; a minute
    old: a hang."""
    dumps = hung_job(Shape(4), 2, 1, lead=0).dumps()
    newest = max(entry["time_created_ns"] for each in dumps.values() for entry in each["entries"]) / 1e9
    for later, state, ranks in ((0.5, State.SLOW, ()), (60.0, State.HANG, (2,))):
        timed = [parsed(each | {"time_seconds": newest + later}, rank) for rank, each in dumps.items()]
        verdict = diagnose(timed)
        assert (verdict.state, verdict.ranks) == (state, ranks)


def test_advancing_ranks_are_slow() -> None:
    """Ranks that advance between two snapshots are slow and not hung. The second snapshot has newer entries
    on every rank; the same snapshot twice has not."""
    early, late = (HungJob(Shape(4), 3, lead=0) for _ in range(2))
    places = early.places(2, "asleep")
    early.run(Fault("asleep", (2,), places[0]))
    late.run(Fault("asleep", (2,), places[1]))
    first, second = ([parsed(each, rank) for rank, each in job.dumps().items()] for job in (early, late))
    assert diagnose([*first, *second]).state is State.SLOW
    assert diagnose([*first, *first]).ranks == (2,)


def test_operation_reached_by_all() -> None:
    """An operation that everyone came to blames nobody. A device or the network hangs, and the dumps do not
    show which."""
    job = HungJob(Shape(4), 3, lead=0)
    job.run(Fault("none", ()))
    for rank in range(4):
        job.shown[rank] = job.enqueued[rank] - 1
    verdict = judged(job.dumps())
    assert (verdict.state, verdict.ranks) == (State.INCONCLUSIVE, ())
    assert verdict.operation == "all_reduce"
    assert "arrived_by_all" in verdict.evidence


@pytest.mark.parametrize(("kind", "share"), [("other", 0.6), ("size", 0.6), ("dtype", 0.6), ("skip", 0.4)])
def test_two_ranks_out_of_step(kind: str, share: float) -> None:
    """Two ranks out of step are both named. In groups of their own or in one; a rank that the dumps cannot
    prove is left out, and no other is named."""
    named: Counter[int] = Counter()
    for seed in range(60):
        draw = random.Random(seed)
        shape = draw.choice(LARGER_SHAPES)
        job = HungJob(shape, seed, names=draw.choice(("megatron", "mesh")), lead=draw.choice((0, 3, 12)))
        ranks = draw.sample(range(shape.world), 2)
        places = set(job.places(ranks[0], kind)) & set(job.places(ranks[1], kind))
        if not places:
            continue
        job.run(Fault(kind, tuple(ranks), draw.choice(sorted(places))))
        verdict = judged(job.dumps())
        assert set(verdict.ranks) <= set(ranks), (seed, shape)
        named[len(verdict.ranks)] += 1
    assert named[2] >= share * named.total(), named


def test_wrong_majority_is_outvoted_by_other_groups() -> None:
    """Two of three that are wrong together do not outvote the other groups. Their peers in other groups call
    what the third does; the run is out of step, and nobody is named."""
    job = HungJob(Shape(3, 1, 3), 1, lead=0)
    place = next(each for each in job.places(1, "other") if job.programs[1][each].group == "dp")
    job.run(Fault("other", (1, 4), place))
    verdict = judged(job.dumps())
    assert (verdict.state, verdict.ranks) == (State.DESYNC, ())
    assert "mismatches" in verdict.evidence


def test_desync_between_two() -> None:
    """Between two ranks that disagree nobody is named, and the state is a desync. The dumps show that they
    disagree, and not which is wrong."""
    job = hung_job(Shape(2), 1, 0, kind="other", seed=1, lead=0)
    verdict = judged(job.dumps())
    assert (verdict.state, verdict.ranks) == (State.DESYNC, ())
    (mismatch,) = verdict.evidence["mismatches"]  # type: ignore[attr-defined] - a list, as JSON has it
    assert sorted(map(tuple, mismatch["calls"].values())) == [(0,), (1,)]


def test_lost_dump_beside_desync() -> None:
    """A rank whose dump is lost is not named beside the one out of step. It may be a victim like the
    others."""
    dumps = hung_job(Shape(4, 1, 2), 5, 2, kind="other").dumps()
    del dumps[2]
    verdict = judged(dumps, broken={2: "lost"})
    assert (verdict.state, verdict.ranks, verdict.missing_ranks) == (State.DESYNC, (5,), (2,))


@pytest.mark.parametrize(("world", "soon", "later"), [(3, (), (0,)), (4, (), (0, 1)), (8, (1,), (0, 1))])
def test_late_rank_is_not_blamed_early(world: int, soon: tuple[int, ...], later: tuple[int, ...]) -> None:
    """A rank yet to come is not blamed before the others have waited long. The ranks are out of step at once;
    the odd one is named once the late rank cannot change the majority."""
    dumps = hung_job(Shape(world), 1, 1, kind="other", seed=1, lead=0).dumps()
    newest = max(entry["time_created_ns"] for each in dumps.values() for entry in each["entries"]) / 1e9
    late = dumps[0]["entries"].pop()
    assert late["state"] != "completed"
    for each in dumps[0]["pg_status"].values():
        each["last_enqueued_collective"] = late["collective_seq_id"] - 1
    for after, ranks in ((0.5, soon), (60.0, later)):
        timed = [parsed(each | {"time_seconds": newest + after}, rank) for rank, each in dumps.items()]
        verdict = diagnose(timed)
        assert (verdict.state, verdict.ranks) == (State.DESYNC, ranks)
