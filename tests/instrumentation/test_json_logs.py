"""Log lines in JSON, also of structlog and loguru: the fields of the run and of OpenTelemetry."""

from __future__ import annotations

import io
import json
import logging
import re
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import rankwatch
from rankwatch.identity import rank_step_span, run_trace, span_text, step_trace, trace_text
from rankwatch.logs import JsonHandler, fields, json_lines
from support.paths import ROOT
from support.processes.python import python


class Sink:
    """A logger of its own, with the handler."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.handler = JsonHandler(self.stream)
        self.logger = logging.Logger("train.loop")
        self.logger.addHandler(self.handler)

    def entry(self) -> dict[str, Any]:
        """The one line that was written."""
        text = self.stream.getvalue()
        assert text.count("\n") == 1
        found: dict[str, Any] = json.loads(
            text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
        )
        return found


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture(autouse=True)
def _no_run_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "_place", None)


def test_fields_of_a_step(run: rankwatch.Run, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of a step names it, and carries the trace of the step and the span of the rank in it."""
    with run.step(41):
        sink.logger.warning("slow %s", "batch", extra={"queue": 3})
    entry = sink.entry()
    trace = step_trace("", "test", run.identity.attempt, 41)
    expected = {
        "run": "test", "rank": 0, "node": run.identity.host, "step": 41, "trace_id": trace_text(trace),
        "span_id": span_text(rank_step_span(trace, 0)), "attempt": run.identity.attempt, "body": "slow batch",
        "severity_text": "WARNING", "severity_number": 13, "logger": "train.loop",
    }  # fmt: skip
    assert {name: entry[name] for name in expected} == expected
    assert entry["attributes"]["queue"] == 3
    assert entry["attributes"]["code.function.name"] == "test_fields_of_a_step"
    assert abs(datetime.fromisoformat(entry["timestamp"]).timestamp() - datetime.now().timestamp()) < 60


def test_numbers_begin_again(run: rankwatch.Run) -> None:
    """Lines of a loop that counts the steps of each epoch from 0 name the trace that the agent makes of each
    step. A step that was abandoned does not count."""
    found = []
    for epoch in range(3):
        for number in range(2):
            if number == 0 and epoch:
                run.begin_step(0)
                run._steps.abandon()
            with run.step(number):
                found.append(fields()["trace_id"])
    attempt = run.identity.attempt
    expected = [step_trace("", "test", attempt, number, epoch) for epoch in range(3) for number in range(2)]
    assert found == [*map(trace_text, expected)]


def test_before_the_first_step(run: rankwatch.Run, sink: Sink) -> None:
    """A line of no step carries the trace of the run, and no span."""
    sink.logger.error("start")
    entry = sink.entry()
    assert entry["trace_id"] == trace_text(run_trace("", "test"))
    assert not {"step", "span_id"} & entry.keys()


def test_without_a_run(sink: Sink) -> None:
    """A process that records nothing writes the same lines, without the run's fields."""
    sink.logger.error("start")
    assert fields() == {}
    assert not {"run", "rank", "trace_id"} & sink.entry().keys()


def test_exception(sink: Sink) -> None:
    """Type, message and traceback, under the names of OpenTelemetry."""
    try:
        raise ValueError("bad batch")
    except ValueError:
        sink.logger.exception("step failed")
    attributes = sink.entry()["attributes"]
    assert (attributes["exception.type"], attributes["exception.message"]) == ("ValueError", "bad batch")
    assert attributes["exception.stacktrace"].endswith("ValueError: bad batch")


class Odd:
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError


def test_odd_values(sink: Sink) -> None:
    """What JSON has no word for is described: NaN, objects, cycles, huge and broken text."""
    cycle: list[Any] = []
    cycle.append(cycle)
    odd = {
        "nan": float("nan"),
        "odd": Odd(),
        "cycle": cycle,
        "lone": "\ud800",
        "big": 1 << 80,
        "by": {1: {2}},
    }
    sink.logger.error("x" * 1_000_000, extra=odd)
    entry = sink.entry()
    attributes = entry["attributes"]
    assert (attributes["nan"], attributes["odd"], attributes["by"]) == ("nan", "<Odd>", {"1": [2]})
    assert len(entry["body"]) < 40_000


def test_wrong_arguments(sink: Sink, capsys: pytest.CaptureFixture[str]) -> None:
    """A message whose arguments do not fit is still written, and no traceback is printed for it."""
    sink.logger.error("loss %d", "nan")
    assert sink.entry()["body"] == "loss %d ('nan',)"
    assert capsys.readouterr().err == ""


def test_broken_stream(sink: Sink, capsys: pytest.CaptureFixture[str]) -> None:
    """A stream that is closed costs lines, which are counted, and nothing else."""
    sink.stream.close()
    sink.logger.error("lost")
    assert sink.handler.lost == 1
    assert capsys.readouterr().err == ""


def test_stream_that_logs(sink: Sink) -> None:
    """A stream that logs what is written to it (a common redirection) does not recur for ever."""

    class Redirected(io.StringIO):
        def write(self, text: str) -> int:
            sink.logger.error("again: %s", text)
            return super().write(text)

    sink.handler.setStream(Redirected())
    sink.logger.error("once")
    assert isinstance(sink.handler.stream, Redirected)
    assert sink.handler.stream.getvalue().count("\n") == 1


def test_as_otlp(run: rankwatch.Run, sink: Sink) -> None:
    """Every field has a place in OTLP's log record, in the form that OTLP wants."""
    logs = pytest.importorskip("opentelemetry.proto.logs.v1.logs_pb2")
    with run.step():
        sink.logger.critical("out of memory")
    entry = sink.entry()
    record = logs.LogRecord(
        time_unix_nano=int(datetime.fromisoformat(entry["timestamp"]).timestamp() * 1e9),
        severity_number=entry["severity_number"],
        severity_text=entry["severity_text"],
        trace_id=bytes.fromhex(entry["trace_id"]),
        span_id=bytes.fromhex(entry["span_id"]),
    )
    assert (len(record.trace_id), len(record.span_id), record.severity_number) == (16, 8, 21)


BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "logs.md").read_text(), flags=re.DOTALL)


@pytest.mark.frameworks
@pytest.mark.process
@pytest.mark.parametrize("library", ["structlog", "loguru"])
def test_fields_of_libraries(tmp_path: Path, library: str) -> None:
    """Run, rank, step, trace and span of the step, and the caller's own value."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    (code,) = [each for each in BLOCKS if f"import {library}" in each]
    done = python(code, directory=tmp_path, check=True)
    (line,) = (each for each in (done.stdout + done.stderr).splitlines() if each.startswith("{"))
    entry = json.loads(line)
    trace = step_trace("", "job", entry["attempt"], 100)
    assert (entry["run"], entry["rank"], entry["step"], entry["body"]) == ("job", 0, 100, "step done")
    assert entry["trace_id"] == trace_text(trace)
    assert entry["span_id"] == span_text(rank_step_span(trace, 0))
    assert entry.get("loss", entry.get("attributes", {}).get("extra", {}).get("loss")) == 2.5
