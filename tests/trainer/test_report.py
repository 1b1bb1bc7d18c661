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
    """A fake clock that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def run_report(clock: Clock, output: io.StringIO, history: Path | None = None) -> RunReport:
    """The report of rank 0 of a run with ten steps."""
    return RunReport(is_writer=True, steps=10, log_every=5, history=history, output=output, clock=clock)


def test_end_record(tmp_path: Path) -> None:
    """Its durations count from the start of the training loop, without the start-up."""
    clock, output = Clock(), io.StringIO()
    with run_report(clock, output, tmp_path / "history.json") as report:
        clock.now = 150.0
        report.begin()
        for step, seconds in ((3, 0.25), (4, 0.75)):
            clock.now += seconds
            report.step(step, torch.tensor(float(step)), 0.1)
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


def test_exception() -> None:
    """The end record names it, and it propagates. A loss that is NaN becomes null, as JSON has no NaN."""
    output = io.StringIO()
    with pytest.raises(ZeroDivisionError), run_report(Clock(), output) as report:
        report.step(1, torch.tensor(float("nan")), 0.1)
        raise ZeroDivisionError
    record = json.loads(output.getvalue())
    assert (record["outcome"], record["exception"]) == ("failed", "ZeroDivisionError")
    assert record["final_loss"] is None


def test_unwritable_history(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the run still ends well."""
    with run_report(Clock(), io.StringIO(), tmp_path / "missing" / "history.json"):
        pass
    assert "could not write the history to" in caplog.text
