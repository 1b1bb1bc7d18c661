"""The page of a run's goodput."""

from __future__ import annotations

from dataclasses import replace

from rankwatch.conventions.states import GoodputState
from rankwatch_diagnosis.goodput.model import AttemptGoodput, Cost, RunGoodput
from rankwatch_diagnosis.goodput.report import goodput_page, lines

HOSTILE = "</title><script>alert(1)</script>\x1b[31m"
RUN = RunGoodput(
    run=HOSTILE,
    source=HOSTILE,
    seconds={GoodputState.PRODUCTIVE: 3600.0, GoodputState.STALL: 400.0},
    attempts=(
        AttemptGoodput(number=0, started=0.0, ended=4000.0, world_size=1, ended_how=HOSTILE, last_step=9),
    ),
    costs=(
        Cost(currency="EUR", basis="list", by_state={GoodputState.PRODUCTIVE: 2.0, GoodputState.STALL: 1.0}),
    ),
    unseen=(HOSTILE,),
)


def test_text_stays_text() -> None:
    """Names come from training processes, and how a run ended from their exceptions."""
    page = goodput_page(RUN)
    assert "<script" not in page
    assert "\x1b" not in page
    assert "\x1b" not in "\n".join(lines(RUN))


def test_money_by_state() -> None:
    """What each state cost stands beside it."""
    text = "\n".join(lines(RUN))
    assert "EUR (list)" in text
    assert "3.00" in text
    assert "no price is known" not in text


def test_nothing_known() -> None:
    """A run without time, attempts and prices has a page, too."""
    empty = RunGoodput(run="r", source="s", seconds={})
    assert "unknown" in goodput_page(empty)
    assert "no attempts are known" in "\n".join(lines(empty))
    assert "unknown" in "\n".join(lines(replace(empty, seconds={GoodputState.DOWN: 1.0})))


def test_utilisation() -> None:
    """Nobody guesses in which type of numbers a model computes: each peak stands for itself."""
    text = "\n".join(lines(replace(RUN, flops_utilisation={"bf16": 0.4, "fp8": 0.2})))
    assert "MFU 40.0% of bf16, 20.0% of fp8" in text
