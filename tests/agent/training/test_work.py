"""Work and the steps that did it are counted together."""

from __future__ import annotations

from pathlib import Path

from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.steps import WorkTotals
from support.agent.process import until
from support.training.ranks import go_on, rank, values

TOKENS = ("job", "0", "tokens")
OPEN_STEP = """
for _ in range(4):
    with run.step():
        run.work(tokens=64)
        ready()
ready()
"""


def test_at_every_moment_the_work_is_that_of_the_steps_counted(tmp_path: Path) -> None:
    """The work of the step that is open waits for it, or a rate over few steps is off by one."""
    collector = RanksCollector(directory=tmp_path)

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


def test_work_outside_of_steps_counts_at_once() -> None:
    """Before the first step, in a run that has none, and between two steps."""
    work = WorkTotals()
    work.add(-1, "samples", 1.0)
    assert work.by_unit == {"samples": 1.0}
    work.add(7, "samples", 2.0)
    work.settle(7)
    work.add(7, "samples", 4.0)
    assert work.by_unit == {"samples": 7.0}


def test_work_of_a_step_whose_record_was_lost_counts_with_the_next_one() -> None:
    """The box overwrites records that nobody read in time."""
    work = WorkTotals()
    work.add(1, "tokens", 1.0)
    work.add(2, "tokens", 2.0)
    work.add(3, "tokens", 4.0)
    work.settle(2)
    assert work.by_unit == {"tokens": 3.0}


def test_of_a_process_that_died_only_the_work_of_ended_steps_counts() -> None:
    """The next process does the rest again."""
    work = WorkTotals()
    work.add(8, "tokens", 1.0)
    work.add(9, "tokens", 2.0)
    work.begin_process(pending=8)
    work.settle(8)
    assert work.by_unit == {"tokens": 1.0}


def test_the_last_step_of_a_process_that_died_counts_none_of_the_work_of_the_next() -> None:
    """That goes back some steps, and may die in one of them as well; then its work is done once more."""
    work = WorkTotals()
    work.add(9, "tokens", 1.0)
    work.begin_process(pending=9)
    work.add(8, "tokens", 2.0)
    work.begin_process(pending=9)
    work.add(8, "tokens", 4.0)
    work.settle(9)
    assert work.by_unit == {"tokens": 1.0}
    work.settle(8)
    assert work.by_unit == {"tokens": 5.0}


def test_work_of_steps_that_never_end_does_not_pile_up() -> None:
    """A box may hold any numbers."""
    work = WorkTotals()
    for number in range(1000):
        work.add(number, "tokens", 1.0)
    assert work.by_unit["tokens"] > 900.0
