"""The verdict on jobs that hang or are out of step: which ranks are named, and when none is."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rankwatch_diagnosis.hang.dump_files import read_source
from rankwatch_diagnosis.hang.engine import diagnose
from rankwatch_diagnosis.hang.verdict import State
from support.diagnosis.hang_jobs import (
    Fault,
    HungJob,
    Shape,
    finished_job,
    hung_job,
    judged,
    named,
    parsed,
    timed,
)
from support.paths import RECORDED

FLAT = (Shape(4), Shape(8), Shape(4, 1, 2), Shape(3, 1, 4), Shape(2, 1, 2))
SHAPES = (*FLAT, Shape(4, 2), Shape(1, 4), Shape(1, 4, 2), Shape(2, 2, 4), Shape(3, 3, 3), Shape(4, 4, 2))
LARGER_SHAPES = tuple(each for each in SHAPES if each.dp > 1 and each.world > 4)
SEEDS = range(40)
REAL = RECORDED / "flight_recorder"
NAMES = ("megatron", "mesh")


def drawn(kind: str, seed: int, **options: bool) -> tuple[HungJob, int]:
    """A job of random shape with this fault somewhere, run until it stands; and the rank at fault."""
    draw = random.Random(seed)
    while True:
        shape, names, lead = draw.choice(SHAPES), draw.choice(NAMES), draw.choice((0, 0, 3, 12))
        job = HungJob(shape, seed, names=names, lead=lead, only_active=draw.random() < 0.3, **options)
        rank = draw.randrange(shape.world)
        places = job.places(rank, kind)
        if places:
            job.run(Fault(kind, (rank,), draw.choice(places)))
            return job, rank


@pytest.mark.parametrize("kind", ["asleep", "killed", "loading", "device"])
def test_stopped_rank_is_named(kind: str) -> None:
    """No victim is named, through data-parallel, tensor-parallel and pipeline groups; stages are victims."""
    for seed in SEEDS:
        job, rank = drawn(kind, seed)
        assert named(job.dumps()) == (State.HANG, (rank,)), (kind, seed, job.shape)


@pytest.mark.parametrize("kind", ["other", "size", "dtype"])
def test_mismatched_call_is_a_desync(kind: str) -> None:
    """The rank that differs is named; none where two differ and no other group shows which is right."""
    for seed in SEEDS:
        job, rank = drawn(kind, seed)
        verdict = judged(job.dumps())
        of_two = 2 in (job.shape.dp, job.shape.tp, job.shape.world)
        assert verdict.state is State.DESYNC, (kind, seed, job.shape)
        assert verdict.ranks == (rank,) or (of_two and not verdict.ranks), (kind, seed, job.shape)
        assert "mismatches" in verdict.evidence


def test_skipped_collective() -> None:
    """It never blames another rank. Some cases can be read either way, and then none is named."""
    right = 0
    for seed in range(120):
        job, rank = drawn("skip", seed)
        _, ranks = named(job.dumps())
        assert ranks in ((rank,), ()), (seed, job.shape)
        right += bool(ranks)
    assert right >= 90


@pytest.mark.parametrize("kind", ["asleep", "loading"])
def test_receive_posted_early(kind: str) -> None:
    """It hides the root cause, which seems to wait like its victims, in a cycle, and blames nobody."""
    right = 0
    for seed in range(80):
        job, rank = drawn(kind, seed, receives_early=True)
        state, ranks = named(job.dumps())
        expected = {(State.HANG, (rank,)), (State.INCONCLUSIVE, ())}
        assert (state, ranks) in expected, (kind, seed, job.shape)
        right += bool(ranks)
    assert right >= 50


def test_several_root_causes() -> None:
    """Two ranks asleep in different tensor-parallel groups of one stage are named together."""
    job = HungJob(Shape(4, 2, 2), 1)
    job.run(Fault("asleep", (9, 14), job.places(9, "asleep")[2]))
    assert judged(job.dumps()).ranks == (9, 14)


@pytest.mark.process
@pytest.mark.parametrize(
    ("case", "ranks"), [("gpu_error_1st", (12, 14)), ("lock_gil_1st", (9, 14))], ids=lambda each: str(each)
)
def test_real_injected_faults(case: str, ranks: tuple[int, ...]) -> None:
    """Real dumps give the ranks in which the fault was injected, by the log that lies beside them."""
    directory = REAL / case
    if not directory.is_dir():
        pytest.skip(f"{directory} is not on this machine")
    injected = (directory / "fault_injection.log").read_text().partition("]")[0].partition("[")[2]
    assert ranks == tuple(map(int, injected.split(",")))
    reading = read_source(directory)
    verdict = diagnose(reading.snapshots, broken=reading.broken)
    assert (verdict.state, verdict.ranks, verdict.missing_ranks) == (State.HANG, ranks, ())
    assert str(verdict.group).startswith("EXPERT_MODEL_PARALLEL_GROUP")


@pytest.mark.parametrize(
    ("job", "state"),
    [
        (hung_job(Shape(4, 1, 2), 5, 4), State.HANG),
        (hung_job(Shape(4, 1, 2), 5, 2, kind="other"), State.DESYNC),
    ],
    ids=["hang", "desync"],
)
def test_missing_dump_of_a_victim(job: HungJob, state: State) -> None:
    """A rank without a dump is not named beside the one that explains the stall: it may be a victim, too."""
    dumps = job.dumps()
    del dumps[2]
    verdict = judged(dumps, broken={2: "lost"})
    assert (verdict.state, verdict.ranks, verdict.missing_ranks) == (state, (5,), (2,))


def test_few_dumps_are_inconclusive() -> None:
    """Where most dumps are missing, their absence proves nothing."""
    dumps = hung_job(Shape(8), 5, 1).dumps()
    verdict = judged({rank: dumps[rank] for rank in (0, 1)})
    assert (verdict.state, verdict.ranks) == (State.INCONCLUSIVE, ())
    assert verdict.missing_ranks == (2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize(("later", "found"), [(0.5, (State.SLOW, ())), (60.0, (State.HANG, (2,)))])
def test_recent_operation_is_slow(later: float, found: tuple[State, tuple[int, ...]]) -> None:
    """An operation of half a second is no hang where the snapshots hold their time."""
    verdict = diagnose(timed(hung_job(Shape(4), 2, 1, lead=0).dumps(), later))
    assert (verdict.state, verdict.ranks) == found


def test_advancing_ranks_are_slow() -> None:
    """The second snapshot has newer entries on every rank; the same snapshot twice has not."""
    first, second = (
        [parsed(each, rank) for rank, each in hung_job(Shape(4), 2, place, lead=0).dumps().items()]
        for place in (0, 1)
    )
    assert diagnose([*first, *second]).state is State.SLOW
    assert diagnose([*first, *first]).ranks == (2,)


def test_operation_reached_by_all() -> None:
    """A device or the network hangs, and the dumps do not show which, so nobody is blamed."""
    job = finished_job(Shape(4))
    job.shown = [enqueued - 1 for enqueued in job.enqueued]
    verdict = judged(job.dumps())
    assert (verdict.state, verdict.ranks, verdict.operation) == (State.INCONCLUSIVE, (), "all_reduce")
    assert "arrived_by_all" in verdict.evidence


@pytest.mark.parametrize(("kind", "share"), [("other", 0.6), ("size", 0.6), ("dtype", 0.6), ("skip", 0.4)])
def test_two_ranks_out_of_step(kind: str, share: float) -> None:
    """Both are named, in groups of their own or in one, but what the dumps cannot prove; and no other is."""
    found: Counter[int] = Counter()
    for seed in range(60):
        draw = random.Random(seed)
        shape = draw.choice(LARGER_SHAPES)
        job = HungJob(shape, seed, names=draw.choice(NAMES), lead=draw.choice((0, 3, 12)))
        ranks = draw.sample(range(shape.world), 2)
        places = set(job.places(ranks[0], kind)) & set(job.places(ranks[1], kind))
        if not places:
            continue
        job.run(Fault(kind, tuple(ranks), draw.choice(sorted(places))))
        verdict = judged(job.dumps())
        assert set(verdict.ranks) <= set(ranks), (seed, shape)
        found[len(verdict.ranks)] += 1
    assert found[2] >= share * found.total(), found


def test_wrong_majority_is_outvoted_by_other_groups() -> None:
    """The peers of two of three that are wrong together call what the third does: nobody is named."""
    job = HungJob(Shape(3, 1, 3), 1, lead=0)
    place = next(each for each in job.places(1, "other") if job.programs[1][each].group == "dp")
    job.run(Fault("other", (1, 4), place))
    verdict = judged(job.dumps())
    assert (verdict.state, verdict.ranks) == (State.DESYNC, ())
    assert "mismatches" in verdict.evidence


def test_desync_between_two() -> None:
    """The dumps show that two ranks disagree, and not which is wrong."""
    verdict = judged(hung_job(Shape(2), 1, 0, kind="other", seed=1, lead=0).dumps())
    assert (verdict.state, verdict.ranks) == (State.DESYNC, ())
    (mismatch,) = verdict.evidence["mismatches"]  # type: ignore[attr-defined] - a list, as JSON has it
    assert sorted(map(tuple, mismatch["calls"].values())) == [(0,), (1,)]


@pytest.mark.parametrize(("world", "soon", "later"), [(3, (), (0,)), (4, (), (0, 1)), (8, (1,), (0, 1))])
def test_late_rank_is_not_blamed_early(world: int, soon: tuple[int, ...], later: tuple[int, ...]) -> None:
    """Ranks are out of step at once; the odd one is named once the late rank cannot change the majority."""
    dumps = hung_job(Shape(world), 1, 1, kind="other", seed=1, lead=0).dumps()
    late = dumps[0]["entries"].pop()
    assert late["state"] != "completed"
    for each in dumps[0]["pg_status"].values():
        each["last_enqueued_collective"] = late["collective_seq_id"] - 1
    for after, ranks in ((0.5, soon), (60.0, later)):
        verdict = diagnose(timed(dumps, after))
        assert (verdict.state, verdict.ranks) == (State.DESYNC, ranks), after
