"""torchtitan's structured logger: a stand-in that logs the same records, and the real one where it is.

torchtitan's trainer itself needs a nightly build of PyTorch, so its loop is repeated span by span.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import rankwatch
from rankwatch.automatic import recording, reporting
from rankwatch.automatic.launching import recording_environment
from rankwatch.automatic.values import values
from rankwatch.blackbox.layout import RecordKind
from rankwatch.integrations import torchtitan
from support.frameworks import torchtitan_records
from support.training.blackbox import Read, box, read

FOLDER = Path(__file__).parents[2]
SCRIPT = FOLDER / "support" / "frameworks" / "torchtitan_loop.py"
FACTORY = "rankwatch.integrations.torchtitan.register"


@pytest.fixture
def log(run: rankwatch.Run, monkeypatch: pytest.MonkeyPatch) -> torchtitan_records.StandIn:
    """A structured logger that reports into the run."""
    monkeypatch.setattr(recording, "opened", lambda: run)
    monkeypatch.setattr(recording, "is_open", lambda: True)
    monkeypatch.setattr(reporting, "_reported", None)
    monkeypatch.setattr(values, "finds_loss", True)
    stand_in = torchtitan_records.StandIn()
    stand_in.logger.addHandler(torchtitan._Handler())
    return stand_in


def train(log: torchtitan_records.StandIn, **options: Any) -> None:
    told = {"span": log.log_trace_span, "scalar": log.log_trace_scalar, "set_step": log.set_step}
    torchtitan_records.train(**{**told, "batches": itertools.repeat(10), "steps": 5, **options})


def of(records: list[Read], kind: RecordKind, name: str = "") -> list[Read]:
    return [each for each in records if each.kind == kind and name in ("", each.name)]


def check_steps(records: list[Read]) -> None:
    """Five steps of two batches of 10 tokens each, and an evaluation after the fourth."""
    steps = of(records, RecordKind.STEP)
    assert [each.payload for each in steps] == [(number, 0) for number in range(1, 6)]
    work = of(records, RecordKind.WORK, "tokens")
    assert [each.payload for each in work] == [(20.0, number) for number in range(1, 6)]
    waits = of(records, RecordKind.PHASE, "data_wait")
    for step, first, second in zip(steps, waits[::2], waits[1::2], strict=True):
        assert step.start <= first.start <= first.end <= second.start <= second.end <= step.end
    (evaluation,) = of(records, RecordKind.PHASE, "evaluation")
    assert steps[3].end <= evaluation.start <= evaluation.end <= steps[4].start


def test_steps(log: torchtitan_records.StandIn, tmp_path: Path) -> None:
    """Steps have torchtitan's numbers and tokens. A step begins with the wait for its first batch. The look
    whether a checkpoint is due, and evaluations, lie after it."""
    train(log, accumulation=2, validate_every=4)
    check_steps(read(box(tmp_path)))
    assert not reporting.is_reported()  # a loop that follows in this process is not torchtitan's


def test_resume(log: torchtitan_records.StandIn, tmp_path: Path) -> None:
    """The first step after a checkpoint shows that the run was resumed."""
    train(log, loaded_step=40, steps=42)
    records = read(box(tmp_path))
    assert [each.payload[0] for each in of(records, RecordKind.STEP)] == [41, 42]
    assert [each.payload[0] for each in of(records, RecordKind.LIFECYCLE, "resumed")] == [40]


@pytest.mark.parametrize(("batches", "expected"), [(5, [(1, 0), (2, 0), (3, 1)]), (4, [(1, 0), (2, 0)])])
def test_end_of_data(
    batches: int, expected: list[tuple[int, int]], log: torchtitan_records.StandIn, tmp_path: Path
) -> None:
    """The step that torchtitan gives up is not one that was completed."""
    train(log, batches=iter([10] * batches), accumulation=2)
    assert [each.payload for each in of(read(box(tmp_path)), RecordKind.STEP)] == expected


def test_error(log: torchtitan_records.StandIn, tmp_path: Path) -> None:
    """The step that an exception ends has failed, and the exception passes untouched."""
    calls = itertools.count(1)
    with pytest.raises(ZeroDivisionError):
        train(log, work=lambda: 1 // (3 - next(calls)))
    steps = of(read(box(tmp_path)), RecordKind.STEP)
    assert [each.payload for each in steps] == [(1, 0), (2, 0), (3, 1)]


def test_failures_stay_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of ours does not reach the span that torchtitan logs; after several we are out."""
    calls: list[str] = []

    def failing(self: object, name: str, record: object) -> None:
        calls.append(name)
        raise RuntimeError("ours")

    monkeypatch.setattr(torchtitan._Events, "follow", failing)
    handler = torchtitan._Handler()
    for _ in range(10):
        assert handler.handle(logging.makeLogRecord({"log_type_name": "step_start", "step": 1}))
    assert len(calls) == 3


@pytest.mark.parametrize(("given", "expected"), [("", FACTORY), (" ", FACTORY), ("a.b,c.d", "a.b,c.d")])
def test_variable(given: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero-code recording names the function where the user has named none."""
    monkeypatch.setenv("TITAN_STRUCT_LOGGER_HANDLERS", given)
    torchtitan.patch(logging)
    assert os.environ["TITAN_STRUCT_LOGGER_HANDLERS"] == expected


@pytest.mark.frameworks
@pytest.mark.process
@pytest.mark.skipif(find_spec("torchtitan") is None, reason="torchtitan is not installed")
@pytest.mark.parametrize("handlers", ["", f"{FACTORY},support.frameworks.torchtitan_loop.nothing"])
def test_real_logger(handlers: str, tmp_path: Path) -> None:
    """The real structured logger reports without a line of code. Its own JSON lines are written as ever,
    unless the user lists what writes."""
    env = {
        **recording_environment({**os.environ, "PYTHONPATH": str(FOLDER)}),
        "RANKWATCH_DIR": str(tmp_path / "boxes"),
        "RANKWATCH_FLIGHT_RECORDER": "0",
        "TITAN_STRUCT_LOGGER_HANDLERS": handlers,
    }
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "rankwatch could not" not in done.stderr, done.stderr
    records = read(box(tmp_path / "boxes"))
    check_steps(records)
    losses = json.loads(done.stdout.splitlines()[-1])
    recorded = [each.payload[0] for each in of(records, RecordKind.SCALAR, "loss")]
    assert recorded == pytest.approx([a + b for a, b in zip(losses[::2], losses[1::2], strict=True)])
    assert len(of(records, RecordKind.SCALAR, "gradient_norm")) == 5
    for phase, count in (("forward", 10), ("backward", 10), ("optimizer", 5)):
        assert len(of(records, RecordKind.PHASE, phase)) == count, phase
    lines = [each.read_text() for each in tmp_path.glob("structured_logs/*.jsonl")]
    assert [each.count('"step_end"') for each in lines] == ([] if handlers else [5])
