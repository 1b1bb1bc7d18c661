"""Phases and collectives find the step they belong to, in whatever order they are recorded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rankwatch_agent.training.steps import Unsettled
from support.fuzzing import BUSY_MACHINE
from support.processes.lines import lines_run

START, END, UNTIL = 10.0, 20.0, 30.0
MOMENTS = st.integers(5, 35).map(float)
PHASES = st.lists(st.tuples(MOMENTS, MOMENTS).map(sorted).map(lambda at: (at[0], at[1], "forward")))


@BUSY_MACHINE
@given(before=PHASES, after=PHASES)
def test_where_a_phase_belongs_does_not_depend_on_when_it_was_recorded(
    before: list[tuple[float, float, str]], after: list[tuple[float, float, str]]
) -> None:
    """One of another thread may come behind the record of its step."""
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
def test_a_collective_belongs_to_the_step_in_which_it_was_enqueued(
    told: list[tuple[float, float, bool]],
) -> None:
    """Those of the step to come are kept for it, all others are let go."""
    unsettled = Unsettled()
    unsettled.collectives.extend(told)
    assert unsettled.take_collectives(START, END, UNTIL) == sorted(
        each for each in told if START <= each[0] < END
    )
    assert unsettled.collectives == sorted(each for each in told if END <= each[0] < UNTIL)


def test_the_phases_of_the_step_to_come_cost_nothing_when_a_step_is_settled() -> None:
    """A step is settled when the next one ends, so the phases of that one are there each time."""

    def lines(to_come: int) -> int:
        unsettled = Unsettled()
        unsettled.step_recorded()
        unsettled.phases.extend((END + number, END + number, "forward") for number in range(to_come))
        return lines_run(lambda: unsettled.take_phases(START, END, END + to_come))

    assert lines(1000) == lines(1)


def test_what_waits_for_a_step_that_does_not_end_is_bounded() -> None:
    """The oldest are let go, and the step that is to be settled loses no more than them."""
    unsettled = Unsettled()
    unsettled.phases.extend((START, END, f"phase {number}") for number in range(5000))
    unsettled.collectives.extend((float(number), 1e9, False) for number in range(5000))
    unsettled.step_recorded()
    gone = unsettled.drop_oldest()
    assert [name for _, _, name in gone] == [f"phase {number}" for number in range(904)]
    assert (len(unsettled.phases), unsettled.collectives[0][0]) == (4096, 904.0)
    assert len(unsettled.take_phases(START, END, UNTIL)[0]) == 4096
