"""Every public function, called with whatever Python has. Once a run was started, none may end it."""

from __future__ import annotations

import copy
import logging
import math
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import rankwatch
from rankwatch import logs
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.checkpoint_paths import read_checkpoints
from rankwatch.conventions import environment
from support.training.blackbox import box, of_kind

_HOOKS = (
    "str repr format float int index len iter next eq ne lt le gt ge hash bool call contains getitem fspath "
    "getattr enter exit add radd sub mul neg abs round bytes reversed instancecheck"
)


def hostile(error: type[Exception]) -> Any:
    """An object all of whose own code raises."""

    def raises(*_: object) -> Any:
        raise error("the code of an argument")

    methods: dict[str, Any] = {f"__{name}__": raises for name in _HOOKS.split()}
    return type("Hostile", (), methods | {"__class__": property(raises)})()


def endless(*_: object) -> Any:
    """Calls itself until the stack is full."""
    return endless()


class Deep:
    """Its text and its number need more stack than there is."""

    __str__ = __repr__ = __float__ = __index__ = endless


HOSTILE = {error.__name__: hostile(error) for error in (RuntimeError, MemoryError, RecursionError)}
VALUES: dict[str, Any] = {
    **HOSTILE,
    "deep": Deep(),
    "none": None,
    "bytes": b"forward",
    "list": [1],
    "type": int,
    "nan": math.nan,
    "infinite": math.inf,
    "negative": -1,
    "large": 2**500,
    "larger": 2**5000,
    "empty": "",
    "megabyte": "x" * (1 << 20),
    "surrogate": "\udc80",
    "null": "\0",
}
try:
    import torch

    VALUES |= {
        "tensor": torch.ones(()),
        "gradient": torch.ones((), requires_grad=True),
        "meta": torch.ones((), device="meta"),
        "two": torch.ones(2),
        "complex": torch.ones((), dtype=torch.complex64),
    }
except ImportError:
    pass


def stages(run: Any, value: Any) -> None:
    with run.checkpoint("save") as operation:
        with operation.stage(value) as _:
            operation.bytes = value
        operation.step = value
        operation.path = value
        operation.stage("write").begin().end(failed=value)
        operation.record_stage(value, value, failed=value)
        operation.unblock()
        operation.failed(value)
        operation.end(failed=value)


def nests(run: Any, value: Any) -> None:
    run.begin_phase(value)
    run.end_phase(value)
    run.begin_phase("forward")
    run.end_phase(value)
    run.end_phase("forward")


def steps(run: Any, value: Any) -> None:
    with run.step(value), run.evaluation():
        run.begin_step(value)
        run.end_step()


def counts(run: Any, value: Any) -> None:
    with run.count_flops(tokens=value):
        pass


CALLS: dict[str, Callable[[Any, Any], object]] = {
    "step": steps,
    "begin_phase": nests,
    "target": lambda run, value: run.target(value),
    "batches": lambda run, value: run.batches(value),
    "scalar": lambda run, value: run.scalar("loss", value),
    "scalar_name": lambda run, value: run.scalar(value, 1.0),
    "work": lambda run, value: run.work(samples=value),
    "count_flops": counts,
    "fingerprint": lambda run, value: run.fingerprint(value),
    "fingerprint_of": lambda run, value: run.fingerprint([value]),
    "checkpoint": lambda run, value: run.checkpoint(value, step=value, path=value),
    "checkpoint_step": lambda run, value: run.checkpoint("save", step=value, path=value).begin().end(),
    "stages": stages,
    "sees": lambda run, value: run.sees(value),
    "cannot_see": lambda run, value: run.cannot_see(value, value),
    "resumed": lambda run, value: run.resumed(value),
    "after_steps": lambda run, value: (run.after_steps(value), steps(run, None)),
    "when_ended": lambda run, value: (run.when_ended(value), run.finish()),
    "when_ending": lambda run, value: (run.when_ending(value), run.finish()),
    "fail": lambda run, value: run.fail(value),
    "exit": lambda run, value: run.__exit__(value, value, value),
    "exit_status": lambda run, value: run.__exit__(SystemExit, SystemExit(value), None),
}
QUIET = {"batches", "fingerprint", "fingerprint_of", "fail", "exit", "checkpoint"}
"""Calls that need not read their argument, or have an answer for each."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[rankwatch.Run]:
    """A run that is under way, and reads the parameters in each step."""
    monkeypatch.setenv(environment.FINGERPRINT_STEPS, "1")
    started = rankwatch.start(
        run="test", rank=0, directory=tmp_path, flight_recorder=False, collectives=False
    )
    assert isinstance(started, rankwatch.Run)
    with started.step():
        pass
    yield started
    started.finish()


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("call", CALLS)
def test_wrong_values(call: str, value: str, run: rankwatch.Run, tmp_path: Path) -> None:
    """No value ends a training, and one whose own code raises is counted."""
    CALLS[call](run, VALUES[value])
    CALLS[call](rankwatch.DisabledRun(), VALUES[value])
    if value in HOSTILE and call not in QUIET:
        assert run._writer.integers[Now.ERRORS] > 0
    run.finish()
    assert of_kind(box(tmp_path), RecordKind.LIFECYCLE)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("call", CALLS)
def test_wrong_values_at_first(call: str, value: str, tmp_path: Path) -> None:
    """Before the first step has ended wrong use may raise UsageError, which names it, and nothing else."""
    run = rankwatch.start(run="test", rank=0, directory=tmp_path, flight_recorder=False, collectives=False)
    try:
        CALLS[call](run, VALUES[value])
    except rankwatch.UsageError as error:
        assert len(str(error)) < 1000
    run.finish()


@pytest.mark.parametrize("value", [each for each in VALUES if each != "list"])
def test_wrong_phases(value: str, run: rankwatch.Run) -> None:
    """A phase of any name that Python can look up."""
    try:
        hash(VALUES[value])
    except Exception:  # noqa: BLE001 - see `Run.phase`
        pytest.skip("Python itself cannot look it up")
    with run.phase(VALUES[value]):
        pass
    assert run._writer.integers[Now.ERRORS] == 1


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", rankwatch.start.__kwdefaults__)
def test_wrong_arguments_of_start(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are UsageError in one short sentence, or nothing is recorded."""
    monkeypatch.chdir(tmp_path)  # a directory may be any text
    try:
        started = rankwatch.start(**{"directory": tmp_path, "run": "test", name: VALUES[value]})
    except rankwatch.UsageError as error:
        assert len(str(error)) < 1000
    else:
        started.finish()


@pytest.mark.parametrize("value", VALUES)
def test_wrong_values_in_logs(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line that cannot be written in JSON is described or lost; neither raises."""
    handler, formatter = logs.JsonHandler(), logs.JsonFormatter()
    for made in (
        {"msg": VALUES[value]},
        {"msg": "value %s", "args": (VALUES[value],)},
        {"msg": "m", "lr": VALUES[value], "nested": {"deeper": [VALUES[value]]}},
        {"msg": "m", "exc_info": (ValueError, VALUES[value], None)},
    ):
        record = logging.makeLogRecord({"levelno": logging.INFO, **made})
        handler.emit(record)
        formatter.format(record)


@pytest.fixture
def _refusing() -> Iterator[None]:
    """The script has a filter of log lines that raises."""
    refuse = Mock(side_effect=ValueError("filter"))
    logger = logging.getLogger("rankwatch")
    logger.addFilter(refuse)
    yield
    logger.removeFilter(refuse)


@pytest.mark.usefixtures("_refusing")
def test_start_with_a_filter_that_raises(tmp_path: Path) -> None:
    """What `start` has to say must not end a training either."""
    (tmp_path / "file").touch()
    with rankwatch.start(directory=tmp_path / "file") as run:
        assert isinstance(run, rankwatch.DisabledRun)


@pytest.mark.usefixtures("_refusing")
def test_filter_that_raises(run: rankwatch.Run) -> None:
    """A filter of the script that raises costs the line of a failure, not the training."""
    run.scalar("loss", "no number")
    run.end_step()
    assert run._writer.integers[Now.ERRORS] == 2


def test_end_of_the_stack(run: rankwatch.Run) -> None:
    """A call near the limit of recursion, where not even a log line fits, is counted."""

    def deeper(room: int) -> None:
        if sys.getrecursionlimit() - depth() > room:
            deeper(room)
            return
        run.scalar("loss", "no number")
        run.work(samples=-1)
        run.end_phase("forward")
        run.resumed(None)  # type: ignore[arg-type]
        with run.step(), run.phase("forward"), run.checkpoint("save"):
            pass

    for room in (12, 20, 40):
        deeper(room)
    assert run._writer.integers[Now.ERRORS] >= 3


def depth() -> int:
    """Frames on the stack of the caller."""
    count, frame = 0, sys._getframe(1)
    while frame.f_back is not None:
        count, frame = count + 1, frame.f_back
    return count


def test_copies(run: rankwatch.Run) -> None:
    """A model that holds its run is copied and saved as one without: the copy holds the same run, and what is
    loaded elsewhere records nothing."""
    model = {"run": run}
    assert copy.deepcopy(model)["run"] is run
    assert copy.copy(run) is run
    assert isinstance(pickle.loads(pickle.dumps(model))["run"], rankwatch.DisabledRun)


def test_failing_counter(run: rankwatch.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's formula for an operation may raise, inside that operation, which returns its result all the
    same."""
    torch = pytest.importorskip("torch")
    from torch.utils import flop_counter

    formula = Mock(side_effect=AssertionError("formula"))
    monkeypatch.setitem(flop_counter.flop_registry, torch.ops.aten.mm, formula)
    with run.count_flops(tokens=1):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert run._writer.integers[Now.ERRORS] >= 1


def test_numbers_of_checkpoints(run: rankwatch.Run, tmp_path: Path) -> None:
    """A step or a size that is no number costs itself, and neither the record nor the note of paths."""
    for step, size in ((None, "many"), (torch.tensor(5), torch.tensor(7)), ("8", -1)):
        with run.checkpoint("save", step=step, path=tmp_path / "c") as operation:  # type: ignore[arg-type]
            operation.bytes = size  # type: ignore[assignment]
    found = [(each.payload[1], each.payload[0]) for each in of_kind(box(tmp_path), RecordKind.CHECKPOINT)]
    assert found == [(0, 0), (5, 7), (-1, 0)]
    assert [each.step for each in read_checkpoints(box(tmp_path).with_suffix(".checkpoints"))] == [-1, 5, 0]


def test_long_names(run: rankwatch.Run) -> None:
    """Names are kept as long as the box keeps them: a loop that makes up long ones must not fill memory."""
    for number in range(100):
        run.scalar("x" * 1000 + str(number), 1.0)
    assert run._scalars._scalars[0] == {}
    assert max(map(len, run._writer._ids)) < 100


def test_hostile_loaders(run: rankwatch.Run) -> None:
    """A loader's own exceptions pass through, one without a length is true, and a run that has ended still
    iterates."""

    def loader() -> Iterator[int]:
        yield 1
        raise KeyError("of the loader")

    assert bool(run.batches(loader()))
    assert not run.batches([])
    for ended in (False, True):
        batches = iter(run.batches(loader()))
        assert next(batches) == 1
        with pytest.raises(KeyError, match="of the loader"):
            next(batches)
        if not ended:
            run.finish()
    with pytest.raises(TypeError, match="not iterable"):
        iter(run.batches(None))  # type: ignore[arg-type]
