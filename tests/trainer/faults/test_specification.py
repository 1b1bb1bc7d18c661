"""Faults as text."""

from __future__ import annotations

import math

import pytest

from rankwatch_trainer.errors import UsageError
from rankwatch_trainer.faults.kinds import FAULTS, Kill, ScheduledFault, Stall, Straggler
from rankwatch_trainer.faults.specification import parse_fault


def parse(text: str) -> ScheduledFault:
    """In step 30 of a job of 4 ranks."""
    return parse_fault(text, present_step=30, world_size=4)


def test_a_fault_names_its_rank_its_steps_and_its_strength() -> None:
    """The example of the documentation."""
    assert parse("straggler:rank=2,factor=1.5,from=50,until=200") == ScheduledFault(
        fault=Straggler(factor=1.5), rank=2, from_step=50, until_step=200
    )


def test_what_is_left_out_means_every_rank_from_now_on() -> None:
    """A lasting fault stays, any other strikes one step."""
    assert parse("straggler") == ScheduledFault(
        fault=Straggler(factor=1.5), rank=None, from_step=30, until_step=math.inf
    )
    assert parse(" kill:rank=1 ") == ScheduledFault(fault=Kill(), rank=1, from_step=30, until_step=31)


def test_steps_may_be_relative_to_the_present_one() -> None:
    """For faults given to a job that already runs."""
    scheduled = parse("stall:seconds=2,from=+0,until=+5")
    assert scheduled == ScheduledFault(fault=Stall(seconds=2.0), rank=None, from_step=30, until_step=35)


def test_a_fault_strikes_its_rank_in_its_steps_only() -> None:
    """`until` is the first step without it."""
    scheduled = parse("straggler:rank=2,from=50,until=52")
    assert [step for step in range(40, 60) if scheduled.strikes(2, step)] == [50, 51]
    assert not scheduled.strikes(1, 50)


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.name)
def test_every_fault_can_be_asked_for_by_its_name(kind: type) -> None:
    """Without parameters each has defaults."""
    assert isinstance(parse(kind.name).fault, kind)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no fault is called ''"),
        ("stragler:rank=1", "no fault is called 'stragler', expected one of straggler, stall, kill"),
        ("straggler:rank=4", "rank is '4', expected a whole number below the world size 4"),
        ("straggler:rank=-1", "rank is '-1'"),
        ("straggler:rank=two", "rank is 'two'"),
        ("straggler:factor=0", "factor is '0', expected a number > 0"),
        ("straggler:factor=nan", "factor is 'nan'"),
        ("straggler:factor=", "factor is ''"),
        (
            "straggler:seconds=1",
            "'seconds=1' is no parameter of straggler, expected rank, from, until",
        ),
        ("stall:seconds", "'seconds' is no parameter of stall"),
        ("kill:from=x", "from is 'x', expected a step such as 50, or +5 from now"),
        ("kill:from=++1", "from is '++1'"),
        ("kill:from=0", "from is '0', expected a step >= 1, or +0 for the present one"),
        ("kill:from=9,from=10", "from is given twice"),
        ("slow-data:from=9,until=9", "until is step 9, expected a step after 9"),
    ],
)
def test_a_mistake_is_told_with_the_fault_and_what_was_expected(text: str, problem: str) -> None:
    """One sentence holds both."""
    with pytest.raises(UsageError) as told:
        parse(text)
    assert str(told.value).startswith(f"could not read fault {text!r}: ")
    assert problem in str(told.value)
