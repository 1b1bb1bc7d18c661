"""Steps, phases and the wait for batches."""

from __future__ import annotations

import inspect
import logging
import weakref
from pathlib import Path
from typing import Any

import pytest

import rankwatch
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.reader import Reader
from rankwatch.checkpoints import CheckpointOperation, Stage
from support.training.blackbox import box, now, of_kind, read


def test_steps_and_phases(run: rankwatch.Run, tmp_path: Path) -> None:
    """Every phase lies within its step, and steps are numbered from 0."""
    for _ in range(3):
        with run.step():
            with run.phase("forward"):
                pass
            with run.phase("backward"):
                pass
    records = read(box(tmp_path))
    steps = [each for each in records if each.kind == RecordKind.STEP]
    forward = [each for each in records if each.name == "forward"]
    assert [step.payload for step in steps] == [(0, 0), (1, 0), (2, 0)]
    for step, phase in zip(steps, forward, strict=True):
        assert step.start <= phase.start <= phase.end <= step.end


def test_plain_calls(run: rankwatch.Run, tmp_path: Path) -> None:
    """`begin_...` and `end_...` record the same as `with`."""
    run.begin_step(7)
    run.begin_phase("forward")
    run.end_phase("forward")
    run.end_step()
    assert [(each.kind, each.name) for each in read(box(tmp_path))[1:]] == [
        (RecordKind.PHASE, "forward"),
        (RecordKind.STEP, ""),
    ]


def test_nested_phases(run: rankwatch.Run, tmp_path: Path) -> None:
    """The inner phase lies within the outer one and is recorded first."""
    with run.step(), run.phase("backward"), run.phase("communication"):
        pass
    inner, outer = of_kind(box(tmp_path), RecordKind.PHASE)
    assert (inner.name, outer.name) == ("communication", "backward")
    assert outer.start <= inner.start <= inner.end <= outer.end


def test_exception(run: rankwatch.Run, tmp_path: Path) -> None:
    """Step and phase are recorded, the step is marked as failed, and the exception propagates."""
    with pytest.raises(ZeroDivisionError), run.step(), run.phase("forward"):
        _ = 1 / 0
    phase, step = read(box(tmp_path))[1:]
    assert phase.name == "forward"
    assert step.payload == (0, 1)


def test_wait_for_batch(run: rankwatch.Run, tmp_path: Path) -> None:
    """A step begins when the wait for its batch begins."""
    for _ in run.batches([10, 20]):
        with run.step():
            pass
    records = read(box(tmp_path))
    waits = [each for each in records if each.name == "data_wait"]
    steps = [each for each in records if each.kind == RecordKind.STEP]
    for wait, step in zip(waits, steps, strict=False):
        assert step.start == pytest.approx(wait.start, abs=1e-4)
        assert step.start <= wait.start
        assert wait.end <= step.end


def test_data_wait_phase(run: rankwatch.Run, tmp_path: Path) -> None:
    """A phase `data_wait` before the step belongs to the step, like a wait of `batches`."""
    with run.phase("data_wait"):
        pass
    with run.step():
        pass
    wait, step = read(box(tmp_path))[1:]
    assert (wait.name, step.kind) == ("data_wait", RecordKind.STEP)
    assert step.start <= wait.start


def test_late_target(run: rankwatch.Run, tmp_path: Path) -> None:
    """A framework tells its number of steps when it begins to train, long after the box was opened."""
    assert now(box(tmp_path)).target_steps == 0
    run.target(40)
    assert now(box(tmp_path)).target_steps == 40


def test_disabled_run() -> None:
    """`DisabledRun` has the methods of `Run`, with the same parameters, and so have its checkpoints: a full
    disk must not end a training that calls one of them."""
    off = rankwatch.DisabledRun().checkpoint("save")
    for twin, kind in (
        (rankwatch.DisabledRun, rankwatch.Run),
        (type(off), CheckpointOperation),
        (type(off.stage("write")), Stage),
    ):
        for name in [each for each in vars(kind) if not each.startswith("_")]:
            if name in ("exited", "replaced", "silence", "remove_box"):
                continue  # for `rankwatch.start`
            ours, theirs = getattr(kind, name), getattr(twin, name)
            if callable(ours):
                assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_evaluation_after_wait(run: rankwatch.Run, tmp_path: Path) -> None:
    """A step does not begin before an evaluation that follows the wait for its batch."""
    for _ in run.batches([1]):
        with run.evaluation():
            pass
        with run.step():
            pass
    (step,) = of_kind(box(tmp_path), RecordKind.STEP)
    (evaluation,) = [each for each in read(box(tmp_path)) if each.name == "evaluation"]
    assert evaluation.end <= step.start


def test_own_phase(tmp_path: Path) -> None:
    """`start(phases=...)` declares phases of the user."""
    run = rankwatch.start(run="own", rank=0, directory=tmp_path, phases=("teacher",), flight_recorder=False)
    with run, run.step(), run.phase("teacher"):
        pass
    assert "teacher" in [each.name for each in read(box(tmp_path))]


def test_unknown_phase(run: rankwatch.Run) -> None:
    """The first call raises. The error names the phase and the known ones."""
    with pytest.raises(rankwatch.UsageError, match=r"phase 'froward' is not one of .*forward"):
        run.phase("froward")


def test_nested_steps(run: rankwatch.Run) -> None:
    """Steps do not nest; the first attempt raises."""
    with pytest.raises(rankwatch.UsageError, match="still open"), run.step(), run.step():
        pass


def test_wrong_use_after_first_step(
    run: rankwatch.Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted and logged once, and never raises: a branch first taken late must not end the run."""
    with run.step():
        pass
    with caplog.at_level(logging.WARNING, "rankwatch"), run.step():
        for _ in range(3):
            with run.phase("froward"):
                pass
        run.end_phase("forward")
        run.checkpoint("export")
        with run.step():
            pass
    assert len(caplog.records) == 1
    assert now(box(tmp_path)).errors >= 5


def test_now_block(run: rankwatch.Run, tmp_path: Path) -> None:
    """A reader sees the open step and the phase that began in it."""
    reader = Reader(box(tmp_path))
    with run.step(41), run.phase("optimizer"):
        now = reader.now()
        assert now.step == 41
        assert now.step_began > 0.0
        (number,) = now.phases_began
        assert reader.name(number) == "optimizer"
    assert reader.now().step_began == 0.0
    assert reader.now().steps_completed == 1
    reader.close()


@pytest.mark.parametrize("number", ["10", 10.5, 2**70, [1]])
def test_invalid_step_number(run: rankwatch.Run, number: Any) -> None:
    """A number from a checkpoint may be anything. After the first step it is counted as an error, and the
    next number is used."""
    with pytest.raises(rankwatch.UsageError, match="step number"):
        run.resumed(number)
    with run.step(4):
        pass
    run.resumed(number)
    with run.step(number):
        pass
    with run.step():
        assert run._steps.current == 6
    assert run._writer.integers[Now.ERRORS] == 2


def test_step_number_on_a_device(run: rankwatch.Run, tmp_path: Path) -> None:
    """Neither its value nor its text is read, because both would wait for the device."""

    class OnGpu:
        is_cpu = False

        def __index__(self) -> int:
            raise AssertionError

        __repr__ = __index__  # type: ignore[assignment]

    number: Any = OnGpu()
    with pytest.raises(rankwatch.UsageError, match="would wait for it"), run.step(number):
        pass
    for each in (4, number):
        with run.step(each):
            pass
    assert [each.payload[0] for each in of_kind(box(tmp_path), RecordKind.STEP)] == [4, 5]
    assert run._writer.integers[Now.ERRORS] == 1


def test_phases_that_never_end(run: rankwatch.Run) -> None:
    """Their memory is bounded. An exception caught between the two calls leaves a phase open."""
    for _ in range(1000):
        run.begin_phase("forward")
    assert len(run._open_calls) <= 64


def test_freed_batch(run: rankwatch.Run) -> None:
    """`del batch` frees the memory, because `batches` keeps no reference to it."""

    class Batch:
        pass

    batch = next(iterator := iter(run.batches(Batch() for _ in range(2))))
    gone = weakref.ref(batch)
    del batch
    assert gone() is None
    next(iterator)


def test_error_of_the_loader(run: rankwatch.Run) -> None:
    """The iteration continues after it if the loader does. A generator would end for good."""
    iterator = iter(run.batches(map(int, ["1", "one", "2"])))
    assert next(iterator) == 1
    with pytest.raises(ValueError, match="one"):
        next(iterator)
    assert list(iterator) == [2]


def test_loader_of_batches(run: rankwatch.Run) -> None:
    """The loader is accessible for `set_epoch`, and its length for progress bars, recorded or not: a full
    disk must not end the loop."""
    loader = [1, 2]
    for each in (run, rankwatch.DisabledRun()):
        assert each.batches(loader).loader is loader
        assert len(each.batches(loader)) == 2
        assert list(each.batches(loader)) == [1, 2]


def test_places(run: rankwatch.Run, tmp_path: Path) -> None:
    """A step has a place in its process, whatever its number."""
    for number in (5, 6, 5, None, 7):
        with run.step(number):
            pass
    reader = Reader(box(tmp_path))
    steps = [each for each in reader.poll().records() if each.kind == RecordKind.STEP]
    reader.close()
    found = [layout.STEP.unpack_from(each.payload) for each in steps]
    shown = [(number, layout.place(flags)) for number, flags in found]
    assert shown == [(5, 0), (6, 1), (5, 2), (6, 3), (7, 4)]
    assert layout.place(layout.STEP_FAILED) == -1, "in older boxes"
