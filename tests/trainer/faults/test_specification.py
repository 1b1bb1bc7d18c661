"""The text form of faults."""

from __future__ import annotations

import math

import pytest

from rankwatch_trainer.errors import UsageError
from rankwatch_trainer.faults.kinds import FAULTS, Kill, ScheduledFault, Stall, Straggler
from rankwatch_trainer.faults.specification import parse_fault


def parse(text: str) -> ScheduledFault:
    """Parse a fault in step 30 of a job with 4 ranks."""
    return parse_fault(text, present_step=30, world_size=4)


def test_all_parameters() -> None:
    """The example in the documentation is parsed as described there."""
    assert parse("straggler:rank=2,factor=1.5,from=50,until=200") == ScheduledFault(
        fault=Straggler(factor=1.5), rank=2, from_step=50, until_step=200
    )


def test_omitted_parameters() -> None:
    """Without a rank the fault affects all ranks. Without steps a lasting fault stays, and any other lasts
    one step."""
    assert parse("straggler") == ScheduledFault(
        fault=Straggler(factor=1.5), rank=None, from_step=30, until_step=math.inf
    )
    assert parse(" kill:rank=1 ") == ScheduledFault(fault=Kill(), rank=1, from_step=30, until_step=31)


def test_relative_steps() -> None:
    """Steps such as +5 count from the present step. A running job needs this."""
    scheduled = parse("stall:seconds=2,from=+0,until=+5")
    assert scheduled == ScheduledFault(fault=Stall(seconds=2.0), rank=None, from_step=30, until_step=35)


def test_rank_and_steps() -> None:
    """The fault affects only its rank, from `from` up to but not including `until`."""
    scheduled = parse("straggler:rank=2,from=50,until=52")
    assert [step for step in range(40, 60) if scheduled.strikes(2, step)] == [50, 51]
    assert not scheduled.strikes(1, 50)


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.name)
def test_name_alone(kind: type) -> None:
    """All parameters of every fault have defaults."""
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
def test_mistakes(text: str, problem: str) -> None:
    """The error quotes the fault and names what was expected."""
    with pytest.raises(UsageError) as raised:
        parse(text)
    assert str(raised.value).startswith(f"could not read fault {text!r}: ")
    assert problem in str(raised.value)
