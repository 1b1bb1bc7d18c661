"""The end record and the history."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch

from rankwatch_trainer.report import RunReport
from support.jobs.trainer import end_record, read_history


class Clock:
    """Moves when told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def run_report(clock: Clock, output: io.StringIO, history: Path | None = None) -> RunReport:
    """Of rank 0 of a run of ten steps."""
    return RunReport(is_writer=True, steps=10, log_every=5, history=history, output=output, clock=clock)


def test_the_end_record_holds_the_figures_of_the_run(tmp_path: Path) -> None:
    """Times run from the begin of the loop; start-up does not count."""
    clock, output = Clock(), io.StringIO()
    with run_report(clock, output, tmp_path / "history.json") as told:
        clock.now = 150.0
        told.begin()
        for step, seconds in ((3, 0.25), (4, 0.75)):
            clock.now += seconds
            told.step(step, torch.tensor(float(step)), 0.1)
        clock.now = 900.0
    assert end_record(output.getvalue()) == {
        "record": "end",
        "outcome": "finished",
        "exception": None,
        "steps": 2,
        "last_step": 4,
        "final_loss": 4.0,
        "mean_step_seconds": 0.5,
        "steps_per_second": 2.0,
    }
    assert read_history(tmp_path / "history.json") == {
        "step": [3, 4],
        "seconds": [0.25, 0.75],
        "loss": [3.0, 4.0],
    }


def test_an_exception_is_in_the_end_record_and_goes_on_its_way() -> None:
    """Also before the first step; a loss that is no number is null, as JSON has no NaN."""
    output = io.StringIO()
    with pytest.raises(ZeroDivisionError), run_report(Clock(), output) as told:
        told.step(1, torch.tensor(float("nan")), 0.1)
        raise ZeroDivisionError
    record = json.loads(output.getvalue())
    assert (record["outcome"], record["exception"]) == ("failed", "ZeroDivisionError")
    assert record["final_loss"] is None


def test_a_history_that_cannot_be_written_is_told_and_nothing_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run has ended well all the same."""
    with run_report(Clock(), io.StringIO(), tmp_path / "missing" / "history.json"):
        pass
    assert "could not write the history to" in caplog.text
