"""Steps from records that arrive in any order, honest or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulation.job import Job, simulate
from bench.simulation.program import JobShape
from rankwatch_agent.training.boxes.follower import RankFollower
from rankwatch_agent.training.boxes.totals import RankTotals
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.steps.assembly import StepAssembler, Unsettled, WorkTotals
from rankwatch_agent.training.steps.timeouts import LearntTimeouts
from rankwatch_agent.training.steps.variation import OpenSteps, StepParts
from support.agent.process import until
from support.device.lone import LoneRank
from support.fuzzing import BUSY_MACHINE
from support.processes.lines import lines_run
from support.training.ranks import go_on, rank, values
from support.training.replayed_job import scrape_live


@pytest.fixture
def steps() -> StepAssembler:
    return StepAssembler(LearntTimeouts(), lambda _: None)


def on_device(
    steps: StepAssembler,
    number: int,
    seconds: float,
    *,
    phases: Sequence[tuple[str, float]] | None = None,
    message: float = 0.0,
    waited: float = 0.0,
    **told: bool,
) -> None:
    """The GPU has finished a step, by default one that only computed and waited for nobody."""
    for name, spent in [("forward", seconds)] if phases is None else phases:
        steps.device.phase(name, spent, number)
    if message:
        steps.device.message(message, number)
    steps.device_step(number, seconds, waited, **{"known": True, **told})


def test_phases_of_far_future() -> None:
    """They are not looked at with each step: 4,096 and many steps kept the agent busy for 15 s a poll."""

    def lines(far: int) -> int:
        steps = StepAssembler(LearntTimeouts(), lambda _: None)
        for _ in range(far):
            steps.unsettled.phases.append((1e9, 1e9 + 1.0, "forward"))

        def take_steps() -> None:
            for number in range(200):
                steps.step(float(number), number + 0.5, number)

        taken = lines_run(take_steps)
        assert steps.steps == 199
        return taken

    assert lines(400) - lines(0) < 20 * 400, "each looked at a few times, not 200 times"


@pytest.mark.process
def test_pipeline_of_simulated_ranks(tmp_path: Path) -> None:
    """The agent knows the replica of each rank, and how long its sends and receives blocked it."""
    shape = JobShape(data_parallel=2, pipeline_parallel=2)
    job = simulate(Job(shape=shape, steps=12, seed=3))
    names = ("rankwatch_rank_info", "rankwatch_step_message_seconds_total", "rankwatch_steps_total")
    scrapes = scrape_live(job, shape, tmp_path, names=frozenset(names), interval_seconds=0.2)
    sent = np.isin(np.array(job.table.operations)[job.table.operation], ("send", "recv"))
    for number in range(shape.ranks):
        of_rank = {each: last[-1] for each, last in scrapes.values.items() if f',rank="{number}"' in each}
        info, messages, steps = (
            next(item for item in of_rank.items() if item[0].startswith(each)) for each in names
        )
        assert f'stage="{number // 2}",data_parallel="{number % 2}"' in info[0]
        rows = sent & (job.table.rank == number) & (job.table.step < steps[1])
        assert messages[1] == pytest.approx(job.table.duration_seconds[rows].sum(), rel=1e-6)


@pytest.mark.parametrize(
    ("told", "timeouts"),
    [(False, {None: 50.0}), (True, {None: 5.0, "checkpoint": 50.0})],
    ids=[
        "not told: normal, or a slow loader that is not wrapped would look like a stall",
        "has its own history",
    ],
)
def test_pauses_between_steps(told: bool, timeouts: dict[str | None, float]) -> None:
    """A pause between steps teaches how long one may last, and a recorded checkpoint makes no step longer."""
    progress = LearntTimeouts()
    steps = StepAssembler(progress, lambda _: None)
    for number in range(20):
        if told:
            steps.unsettled.phases.append((10.0 * number - 9.0, 10.0 * number, "checkpoint"))
        steps.step(10.0 * number, 10.0 * number + 1.0, number)
    assert {name: progress.timeout(name) for name in timeouts} == timeouts


START, END, UNTIL = 10.0, 20.0, 30.0
MOMENTS = st.integers(5, 35).map(float)
PHASES = st.lists(st.tuples(MOMENTS, MOMENTS).map(sorted).map(lambda at: (at[0], at[1], "forward")))


@BUSY_MACHINE
@given(before=PHASES, after=PHASES)
def test_phase_order(before: list[tuple[float, float, str]], after: list[tuple[float, float, str]]) -> None:
    """Where it belongs does not depend on when it came: one of another thread may come after its step."""
    unsettled = Unsettled()
    unsettled.phases.extend(before)
    unsettled.step_recorded()
    unsettled.phases.extend(after)
    inside, outside = unsettled.take_phases(START, END, UNTIL)
    told = [*before, *after]
    kept = [each for each in told if END <= each[0] < UNTIL]
    assert unsettled.phases == kept
    assert inside == [each for each in told if each not in kept and each[0] >= START and each[1] <= END]
    assert outside == [each for each in told if each not in kept and each not in inside]


@BUSY_MACHINE
@given(st.lists(st.tuples(MOMENTS, st.just(40.0), st.booleans())))
def test_collective_of_step(told: list[tuple[float, float, bool]]) -> None:
    """A collective belongs to the step that enqueued it. Those of the next step are kept for it."""
    unsettled = Unsettled()
    unsettled.collectives.extend(told)
    taken = unsettled.take_collectives(START, END, UNTIL)
    assert taken == sorted(each for each in told if START <= each[0] < END)
    assert unsettled.collectives == sorted(each for each in told if END <= each[0] < UNTIL)


def test_cost_of_later_phases() -> None:
    """A step is settled when the next one ends, so the phases of that one are there each time."""

    def lines(to_come: int) -> int:
        unsettled = Unsettled()
        unsettled.step_recorded()
        unsettled.phases.extend((END + number, END + number, "forward") for number in range(to_come))
        return lines_run(lambda: unsettled.take_phases(START, END, END + to_come))

    assert lines(1000) == lines(1)


def test_unsettled_is_bounded() -> None:
    """The oldest are let go, and the step that is to be settled loses no more than them."""
    unsettled = Unsettled()
    unsettled.phases.extend((START, END, f"phase {number}") for number in range(5000))
    unsettled.collectives.extend((float(number), 1e9, False) for number in range(5000))
    unsettled.step_recorded()
    gone = unsettled.drop_oldest()
    assert [name for _, _, name in gone] == [f"phase {number}" for number in range(904)]
    assert (len(unsettled.phases), unsettled.collectives[0][0]) == (4096, 904.0)
    assert len(unsettled.take_phases(START, END, UNTIL)[0]) == 4096


def test_work_by_step() -> None:
    """Work counts to the step whose number it bears: the next one's arrives before this one is settled."""
    done: list[StepParts] = []
    steps = OpenSteps(done.append)
    for number, amount in ((1, 100.0), (2, 300.0), (1, 50.0)):
        steps.work(number, amount)
    for number in (1, 2, 3):
        steps.ended(number)
    assert [each.work for each in done] == [150.0, 300.0, 0.0]


def test_open_steps_are_bounded() -> None:
    """A hostile box may claim any number of steps that never end, and of microbatches."""
    steps = OpenSteps(lambda _: None)
    for number in range(100_000):
        steps.work(number, 1.0)
        steps.of(7).phase("forward", 1.0)
    assert len(steps._steps) == 64
    assert len(steps.of(7).forward_seconds) <= 4096


def test_checkpoint_in_step(steps: StepAssembler) -> None:
    """It makes the step neither late nor uneven: sections of a known kind are told from its own time."""
    for number in range(40):
        start = 10.0 * number
        for phase in ("forward", "forward", "backward", "backward"):
            steps.unsettled.phases.append((start, start + 0.25, phase))
            start += 0.25
        last = start + 5.0 * (number == 30)
        if last > start:
            steps.unsettled.phases.append((start, last, "checkpoint"))
        steps.step(10.0 * number, last, number)
    steps.settle(1e6, 1e6)
    variation = steps.variation
    assert (variation.late_steps, variation.microbatches) == (0, 80)
    assert steps.local_seconds == 45.0
    assert max(variation.terms.values()) < 1e-12


TOKENS = ("job", "0", "tokens")
OPEN_STEP = """
for _ in range(4):
    with run.step():
        run.work(tokens=64)
        ready()
ready()
"""


@pytest.mark.process
def test_work_of_counted_steps(tmp_path: Path, collector: RanksCollector) -> None:
    """The work of the step that is open waits for it, or a rate over few steps is off by one."""

    def counted() -> float:
        collection = collector.collect()
        (steps,) = values(collection, "rankwatch_steps_total").values()
        assert values(collection, "rankwatch_work_total").get(TOKENS, 0.0) == 64 * steps
        return steps

    with rank(tmp_path, OPEN_STEP) as process:
        for _ in range(4):
            counted()
            go_on(process)
        until(lambda: counted() == 4, "the last step is settled")


TWICE = [("add", 9, 1.0), ("begin_process", 9), ("add", 8, 2.0), ("begin_process", 9), ("add", 8, 4.0)]


@pytest.mark.parametrize(
    ("events", "counted"),
    [
        ([("add", -1, 1.0)], 1.0),
        ([("add", 7, 2.0), ("settle", 7), ("add", 7, 4.0)], 6.0),
        ([("add", 1, 1.0), ("add", 2, 2.0), ("add", 3, 4.0), ("settle", 2)], 3.0),
        ([("add", 8, 1.0), ("add", 9, 2.0), ("begin_process", 8), ("settle", 8)], 1.0),
        ([*TWICE, ("settle", 9)], 1.0),
        ([*TWICE, ("settle", 9), ("settle", 8)], 5.0),
        ([("add", number, 1.0) for number in range(1000)], 936.0),
    ],
    ids=[
        "before the first step, or in a run that has none: at once",
        "between two steps: at once",
        "a step whose record was overwritten before anybody read it counts with the next one",
        "of a process that died only the work of ended steps: the next one does the rest again",
        "the last step of a process that died counts none of the work of the next one",
        "which goes back some steps, and may die in one of them as well: it is done once more",
        "work of steps that never end does not pile up: a box may hold any numbers",
    ],
)
def test_work(events: Sequence[tuple[Any, ...]], counted: float) -> None:
    """Work counts once, with the step that it was done in."""
    work = WorkTotals()
    for name, *arguments in events:
        if name == "add":
            arguments.insert(1, "tokens")
        getattr(work, name)(*arguments)
    assert work.by_unit == {"tokens": counted}


def test_step_on_device(steps: StepAssembler) -> None:
    """A step counts once the GPU has done it, by its clock: the host's records show what was enqueued."""
    report = {"phases": [("forward", 0.6)], "message": 0.1, "waited": 0.3}
    for number in range(3):
        steps.unsettled.phases.append((float(number), number + 0.5, "forward"))
        steps.step(float(number), number + 0.5, number, on_device=True)
        if number == 1:  # the GPU is done before the next step is over on the host
            on_device(steps, 1, 1.0, **report)
    assert (steps.steps, steps.last_step) == (1, 1)
    on_device(steps, 0, 1.0, **report)
    on_device(steps, 2, 1.0, **report)
    steps.settle(10.0, 10.0)
    assert steps.steps == 3
    assert steps.phase_seconds == pytest.approx({"forward": 1.8, "communication": 0.9, "other": 0.3})
    sums = (steps.seconds, steps.local_seconds, steps.message_seconds)
    assert sums == pytest.approx((3.0, 2.1, 0.3))


@pytest.mark.parametrize(
    ("told", "phases", "local"),
    [
        ({"phases": [("forward", 0.6)], "message": 0.1, "known": False}, {"forward": 0.6, "other": 0.4}, 0.0),
        (
            {"phases": [], "timed": False},
            {"communication": 0.3, "other": 0.7},
            0.7,
        ),
        ({"phases": [("forward", 1e308)] * 2, "message": 1e308}, {"other": 1.0}, 0.0),
        ({"phases": [("communication", 1e308)] * 2, "message": 1e308}, {"other": 1.0}, 0.0),
    ],
    ids=[
        "where own time and waits cannot be told apart there is no communication and no local time",
        "an agent that comes in between knows the use of a step without timed phases only as other",
        "phases longer than their step are not honest: its time has no known use, and no sum grows beyond it",
        "nor is such communication",
    ],
)
def test_what_is_known_of_a_step_on_a_gpu(
    steps: StepAssembler, told: dict[str, Any], phases: dict[str, float], local: float
) -> None:
    """One step of a second, of which the GPU says that it waited 0.3 s."""
    steps.step(0.0, 0.5, 0, on_device=True)
    on_device(steps, 0, 1.0, waited=0.3, **told)
    steps.settle(10.0, 10.0)
    assert steps.steps == 1
    assert steps.phase_seconds == pytest.approx(phases)
    assert (steps.local_seconds, steps.local_known) == (pytest.approx(local), local > 0.0)
    assert steps.message_seconds <= 0.3


def test_untimed_phases(steps: StepAssembler) -> None:
    """Of short steps on a GPU few have their phases timed. The others share what is left of them in the same
    way, but for those that take long in single steps: these are timed in each."""
    for number in range(2):
        steps.step(float(number), number + 0.5, number, on_device=True)
    timed = [("forward", 0.2), ("backward", 0.4), ("evaluation", 9.0)]
    on_device(steps, 0, 10.0, phases=timed, waited=0.2)
    on_device(steps, 1, 2.0, phases=[("data_wait", 0.5)], waited=0.3, timed=False)
    steps.settle(10.0, 10.0)
    share = 1 + 1.2 / 0.8
    own = {
        "evaluation": 9.0,
        "data_wait": 0.5,
        "forward": 0.2 * share,
        "backward": 0.4 * share,
        "other": 0.2 * share,
    }
    assert steps.phase_seconds == pytest.approx({**own, "communication": 0.2 + 0.3})
    assert steps.seconds == pytest.approx(sum(steps.phase_seconds.values()))
    assert steps.local_seconds == pytest.approx(9.8 + 1.7)


def test_step_that_the_device_never_ends(steps: StepAssembler) -> None:
    """A minute after its process it counts as of no known use; so do the oldest of more than 64."""
    for number in range(100):
        steps.step(number / 2, number / 2 + 0.25, number, on_device=True)
    assert steps.steps == 100 - 1 - 64
    steps.settle(80.0, 80.0)
    assert steps.steps == 40
    steps.settle(200.0, 200.0)
    assert steps.steps == 100
    assert not steps.local_known
    assert steps.phase_seconds == pytest.approx({"other": 25.0})


def test_step_that_later_ones_do_not_report(steps: StepAssembler) -> None:
    """Steps go on, and what the GPU should have done a minute before is not reported: it counts likewise."""
    for number in range(4):
        steps.step(40.0 * number, 40.0 * number + 1.0, number, on_device=True)
    steps.settle(130.0, 130.0, living=True)
    assert (steps.steps, steps.last_step) == (2, 1)
    assert steps.phase_seconds == pytest.approx({"other": 2.0})


def test_long_evaluation_after_a_step(steps: StepAssembler) -> None:
    """The GPU's report of a step is written when the next step ends, after an evaluation of an hour."""
    steps.step(0.0, 1.0, 0, on_device=True)
    for moment in (3.0, 300.0, 3600.0):
        steps.settle(moment, moment, living=True)
    steps.unsettled.phases.append((1.5, 3601.0, "evaluation"))
    steps.step(3601.0, 3602.0, 1, on_device=True)
    on_device(steps, 0, 0.75)
    steps.step(3602.0, 3603.0, 2, on_device=True)
    assert (steps.steps, steps.local_known) == (1, True)
    assert steps.phase_seconds == pytest.approx({"forward": 0.75, "communication": 0.0, "other": 0.0})


def test_process_that_ends_before_its_gpu(tmp_path: Path) -> None:
    """Steps that a GPU has not reported count as of no known use once another process comes."""
    before = LoneRank(tmp_path)
    for number in range(4):
        before.forward(0.010)
        if number == 0:
            before.device_finishes()
    follower = RankFollower(before.writer.path, RankTotals(lambda _: None, max_names=64))
    follower.poll(before.host.now)
    assert follower.totals.steps.steps == 1
    before.run.silence()
    after = LoneRank(tmp_path)
    follower.poll(after.host.now)
    steps = follower.totals.steps
    follower.close()
    assert (steps.steps, follower.starts) == (4, 2)
    assert steps.phase_seconds["forward"] == pytest.approx(0.010, abs=1e-4)
    assert steps.seconds == pytest.approx(sum(steps.phase_seconds.values()))


def test_gpu_that_reports_a_step_too_late(steps: StepAssembler) -> None:
    """It is not taken for the step of this number in the next epoch."""
    steps.step(0.0, 1.0, 0, on_device=True)
    steps.settle(3.0, 3.0)
    steps.settle(300.0, 300.0)
    assert steps.steps == 1
    on_device(steps, 0, 0.75)
    for number in range(3):
        steps.step(300.0 + number, 301.0 + number, number, on_device=True)
        if number:
            on_device(steps, number - 1, 0.5)
    assert steps.phase_seconds["forward"] == 2 * 0.5


def test_phases_of_many_steps_on_a_gpu(steps: StepAssembler) -> None:
    """Those of steps that do not end are kept as far as the rank's share of memory goes."""
    steps.keep_at_most(80)
    for number in range(100):
        for _ in range(500):
            steps.device.phase("forward", 0.001, number)
    kept = sum(len(each.phases) for each in steps.device._steps.values())
    assert kept <= 64 * 64
