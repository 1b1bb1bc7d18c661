"""The text form of faults, and the fault file, which injects them into a running job."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest

from rankwatch_trainer.errors import UsageError
from rankwatch_trainer.faults import FAULTS, Conditions, FaultFile, ScheduledFault, parse_fault


def parse(text: str) -> ScheduledFault:
    """Parse a fault in step 30 of a job with 4 ranks."""
    return parse_fault(text, present_step=30, world_size=4)


def scheduled(name: str, rank: int | None, first: int, until: float, **parameters: float) -> ScheduledFault:
    return ScheduledFault(
        fault=FAULTS[name], parameters=parameters, rank=rank, from_step=first, until_step=until
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The example in the documentation.
        ("straggler:rank=2,factor=1.5,from=50,until=200", scheduled("straggler", 2, 50, 200, factor=1.5)),
        # Without a rank all ranks. Without steps a lasting fault stays, and any other lasts one step.
        ("straggler", scheduled("straggler", None, 30, math.inf, factor=1.5)),
        (" kill:rank=1 ", scheduled("kill", 1, 30, 31)),
        # Steps such as +5 count from the present step. A running job needs this.
        ("stall:seconds=2,from=+0,until=+5", scheduled("stall", None, 30, 35, seconds=2.0)),
    ],
)
def test_parse_fault(text: str, expected: ScheduledFault) -> None:
    assert parse(text) == expected


def test_rank_and_steps() -> None:
    """The fault affects only its rank, from `from` up to but not including `until`."""
    scheduled = parse("straggler:rank=2,from=50,until=52")
    assert [step for step in range(40, 60) if scheduled.strikes(2, step)] == [50, 51]
    assert not scheduled.strikes(1, 50)


@pytest.mark.parametrize("name", FAULTS)
def test_name_alone(name: str) -> None:
    """All parameters of every fault have defaults, and worsen a condition that exists."""
    conditions = Conditions()
    parse(name).apply(conditions)
    assert {each for each, value in vars(conditions).items() if value != getattr(Conditions, each)} == set(
        FAULTS[name].worsens
    )
    assert vars(conditions).keys() == vars(Conditions()).keys()


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
        ("straggler:seconds=1", "'seconds=1' is no parameter of straggler, expected rank, from, until"),
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a fault file that does not exist yet."""
    return tmp_path / "faults"


def test_missing_file(path: Path) -> None:
    """It contains no faults and raises no error, because it may be created at any time."""
    assert FaultFile(path, 4).faults(1) == ()


def test_first_step_of_a_line(path: Path) -> None:
    """A line counts from the step in which it is first read. Lines added later do not change that."""
    file = FaultFile(path, 4)
    path.write_text("# injected by hand\n\nstraggler:rank=2\n")
    (straggler,) = file.faults(17)
    path.write_text("straggler:rank=2\nkill:rank=1,from=+3\n")
    unchanged, kill = file.faults(25)
    assert straggler.from_step == 17
    assert unchanged is straggler
    assert kill.from_step == 28


def test_removed_line(path: Path) -> None:
    """A fault ends when its line or the file is removed, so that a job can be healed."""
    file = FaultFile(path, 4)
    path.write_text("straggler:rank=2\nslow-data:rank=1\n")
    assert len(file.faults(1)) == 2
    path.write_text("slow-data:rank=1\n")
    assert [scheduled.fault.name for scheduled in file.faults(2)] == ["slow-data"]
    path.unlink()
    assert file.faults(3) == ()


def test_malformed_line(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is ignored and logged once, even if other lines change later and whatever bytes it contains."""
    file = FaultFile(path, 4)
    with caplog.at_level(logging.WARNING):
        path.write_bytes(b"gremlin:rank=1\n\xff\xfe\nstraggler:rank=2\n")
        assert len(file.faults(1)) == 1
        path.write_bytes(b"gremlin:rank=1\n\xff\xfe\nstraggler:rank=2\nslow-data:rank=0\n")
        assert len(file.faults(2)) == 2
    assert len(caplog.records) == 2
    assert "ignored a line of fault file" in caplog.text
    assert "no fault is called 'gremlin'" in caplog.text


def test_unreadable_file(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is ignored and logged, for example if the path is a directory."""
    path.mkdir()
    assert FaultFile(path, 4).faults(1) == ()
    assert "could not read fault file" in caplog.text
