"""Two ranks out of step at once, and the limits of what a majority can tell."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rankwatch_diagnosis.hang.engine import diagnose
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from support.diagnosis.hang_jobs import Fault, HungJob, Shape, parsed

SHAPES = (
    Shape(8),
    Shape(4, 1, 2),
    Shape(3, 1, 4),
    Shape(4, 2),
    Shape(2, 2, 4),
    Shape(3, 3, 3),
    Shape(4, 4, 2),
)


def judged(job: HungJob) -> HangVerdict:
    return diagnose([parsed(document, rank) for rank, document in job.dumps().items()])


@pytest.mark.parametrize(("kind", "share"), [("other", 0.6), ("size", 0.6), ("dtype", 0.6), ("skip", 0.4)])
def test_two_ranks_out_of_step_are_both_named(kind: str, share: float) -> None:
    """In groups of their own or in one; whom the dumps do not tell is left out, and nobody else named."""
    told: Counter[int] = Counter()
    for seed in range(60):
        draw = random.Random(seed)
        shape = draw.choice(SHAPES)
        job = HungJob(shape, seed, names=draw.choice(("megatron", "mesh")), lead=draw.choice((0, 3, 12)))
        ranks = draw.sample(range(shape.world), 2)
        places = set(job.places(ranks[0], kind)) & set(job.places(ranks[1], kind))
        if not places:
            continue
        job.run(Fault(kind, tuple(ranks), draw.choice(sorted(places))))
        verdict = judged(job)
        assert set(verdict.ranks) <= set(ranks), (seed, shape)
        told[len(verdict.ranks)] += 1
    assert told[2] >= share * told.total(), told


def test_two_of_three_that_are_wrong_together_do_not_outvote_the_other_groups() -> None:
    """Their peers in other groups call what the third does; the run is out of step, and nobody is named."""
    job = HungJob(Shape(3, 1, 3), 1, lead=0)
    place = next(each for each in job.places(1, "other") if job.programs[1][each].group == "dp")
    job.run(Fault("other", (1, 4), place))
    verdict = judged(job)
    assert (verdict.state, verdict.ranks) == (State.DESYNC, ())
    assert "mismatches" in verdict.evidence


def test_between_two_nobody_is_named_and_the_state_is_told() -> None:
    """That they disagree is seen; which of them is wrong is not."""
    job = HungJob(Shape(2), 1, lead=0)
    job.run(Fault("other", (1,), job.places(1, "other")[0]))
    verdict = judged(job)
    assert (verdict.state, verdict.ranks) == (State.DESYNC, ())
    (mismatch,) = verdict.evidence["mismatches"]  # type: ignore[attr-defined] - a list, as JSON has it
    assert sorted(map(tuple, mismatch["calls"].values())) == [(0,), (1,)]


def test_a_rank_whose_dump_is_lost_is_not_named_beside_the_one_out_of_step() -> None:
    """It may be a victim like the others."""
    job = HungJob(Shape(4, 1, 2), 3)
    job.run(Fault("other", (5,), job.places(5, "other")[2]))
    dumps = job.dumps()
    del dumps[2]
    verdict = diagnose([parsed(document, rank) for rank, document in dumps.items()], broken={2: "lost"})
    assert (verdict.state, verdict.ranks, verdict.missing_ranks) == (State.DESYNC, (5,), (2,))


@pytest.mark.parametrize(("world", "soon", "later"), [(3, (), (0,)), (4, (), (0, 1)), (8, (1,), (0, 1))])
def test_a_rank_yet_to_come_is_no_culprit_before_the_others_have_waited_long(
    world: int, soon: tuple[int, ...], later: tuple[int, ...]
) -> None:
    """Out of step they are at once; but who is odd is told only where it cannot change that."""
    job = HungJob(Shape(world), 1, lead=0)
    job.run(Fault("other", (1,), job.places(1, "other")[1]))
    dumps = job.dumps()
    newest = max(entry["time_created_ns"] for each in dumps.values() for entry in each["entries"]) / 1e9
    late = dumps[0]["entries"].pop()
    assert late["state"] != "completed"
    for each in dumps[0]["pg_status"].values():
        each["last_enqueued_collective"] = late["collective_seq_id"] - 1
    for after, ranks in ((0.5, soon), (60.0, later)):
        timed = [parsed(each | {"time_seconds": newest + after}, rank) for rank, each in dumps.items()]
        verdict = diagnose(timed)
        assert (verdict.state, verdict.ranks) == (State.DESYNC, ranks)
