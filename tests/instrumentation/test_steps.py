"""Steps, phases and the wait for batches."""

from __future__ import annotations

import inspect
import logging
import weakref
from pathlib import Path
from typing import Any

import pytest

import rankwatch
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.reader import Reader
from support.training.blackbox import box, of_kind, read


def test_a_step_holds_its_phases(run: rankwatch.Run, tmp_path: Path) -> None:
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


def test_plain_calls_record_the_same_as_context_managers(run: rankwatch.Run, tmp_path: Path) -> None:
    """begin and end instead of `with`."""
    run.begin_step(7)
    run.begin_phase("forward")
    run.end_phase("forward")
    run.end_step()
    assert [(each.kind, each.name) for each in read(box(tmp_path))[1:]] == [
        (RecordKind.PHASE, "forward"),
        (RecordKind.STEP, ""),
    ]


def test_phases_nest(run: rankwatch.Run, tmp_path: Path) -> None:
    """The inner phase lies within the outer one and is recorded first."""
    with run.step(), run.phase("backward"), run.phase("communication"):
        pass
    inner, outer = of_kind(box(tmp_path), RecordKind.PHASE)
    assert (inner.name, outer.name) == ("communication", "backward")
    assert outer.start <= inner.start <= inner.end <= outer.end


def test_a_step_that_an_exception_ends_is_still_recorded(run: rankwatch.Run, tmp_path: Path) -> None:
    """Step and phase end in the record, the step is marked, and the exception goes on its way."""
    with pytest.raises(ZeroDivisionError), run.step(), run.phase("forward"):
        _ = 1 / 0
    phase, step = read(box(tmp_path))[1:]
    assert phase.name == "forward"
    assert step.payload == (0, 1)


def test_the_wait_for_a_batch_belongs_to_the_step_that_follows(run: rankwatch.Run, tmp_path: Path) -> None:
    """The step begins where the wait for its batch began."""
    assert [batch for batch in run.batches([10, 20]) if not run.begin_step() and not run.end_step()] == [
        10,
        20,
    ]
    records = read(box(tmp_path))
    waits = [each for each in records if each.name == "data_wait"]
    steps = [each for each in records if each.kind == RecordKind.STEP]
    for wait, step in zip(waits, steps, strict=False):
        assert step.start == pytest.approx(wait.start, abs=1e-4)
        assert step.start <= wait.start
        assert wait.end <= step.end


def test_a_wait_that_the_loop_times_itself_belongs_to_the_next_step_too(
    run: rankwatch.Run, tmp_path: Path
) -> None:
    """`with run.phase("data_wait")` before the step."""
    with run.phase("data_wait"):
        pass
    with run.step():
        pass
    wait, step = read(box(tmp_path))[1:]
    assert (wait.name, step.kind) == ("data_wait", RecordKind.STEP)
    assert step.start <= wait.start


def test_a_disabled_run_takes_every_call_of_a_run() -> None:
    """What `Run` offers, `DisabledRun` offers with the same arguments."""
    for name in [each for each in vars(rankwatch.Run) if not each.startswith("_")]:
        if name in ("when_ended", "after_steps", "exited", "silence"):
            continue  # for `rankwatch.start` itself
        ours, theirs = getattr(rankwatch.Run, name), getattr(rankwatch.DisabledRun, name)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name


def test_an_evaluation_after_the_wait_is_no_part_of_the_next_step(run: rankwatch.Run, tmp_path: Path) -> None:
    """A step does not reach back over an evaluation or a checkpoint."""
    for _ in run.batches([1]):
        with run.evaluation():
            pass
        with run.step():
            pass
    (step,) = of_kind(box(tmp_path), RecordKind.STEP)
    (evaluation,) = [each for each in read(box(tmp_path)) if each.name == "evaluation"]
    assert evaluation.end <= step.start


def test_batches_are_as_long_as_the_loader(run: rankwatch.Run) -> None:
    """A progress bar around the loader still works."""
    assert len(run.batches([1, 2, 3])) == 3


def test_a_phase_of_ones_own_is_declared_at_the_start(tmp_path: Path) -> None:
    """`start(phases=...)` adds names."""
    run = rankwatch.start(run="own", directory=tmp_path, phases=("teacher",), flight_recorder=False)
    with run, run.step(), run.phase("teacher"):
        pass
    assert "teacher" in [each.name for each in read(box(tmp_path))]


def test_an_unknown_phase_is_told_at_the_first_call(run: rankwatch.Run) -> None:
    """The message names the phase and what is known."""
    with pytest.raises(rankwatch.UsageError, match=r"phase 'froward' is none of .*forward"):
        run.phase("froward")


def test_a_step_inside_a_step_is_told_at_the_first_call(run: rankwatch.Run) -> None:
    """Steps do not nest."""
    with pytest.raises(rankwatch.UsageError, match="still open"), run.step(), run.step():
        pass


def test_wrong_use_after_the_first_step_never_ends_the_run(
    run: rankwatch.Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A branch first taken late is told in the log once and counted; its time becomes `other`."""
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
    reader = Reader(box(tmp_path))
    assert reader.now().errors >= 5
    reader.close()


def test_the_now_block_tells_what_is_open(run: rankwatch.Run, tmp_path: Path) -> None:
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
def test_a_number_that_is_none_never_ends_the_run(run: rankwatch.Run, number: Any) -> None:
    """A step read from a checkpoint may be anything: told once, and the next number is taken."""
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


def test_a_number_on_a_device_is_never_waited_for(run: rankwatch.Run, tmp_path: Path) -> None:
    """Not for its value, and not for its text in the message either."""

    class OnGpu:
        is_cpu = False

        def __index__(self) -> int:
            raise AssertionError

        def __repr__(self) -> str:
            raise AssertionError

    with pytest.raises(rankwatch.UsageError, match="waited for"), run.step(OnGpu()):  # type: ignore[arg-type]
        pass
    with run.step(4):
        pass
    with run.step(OnGpu()):  # type: ignore[arg-type]
        pass
    assert [each.payload[0] for each in of_kind(box(tmp_path), RecordKind.STEP)] == [4, 5]
    assert run._writer.integers[Now.ERRORS] == 1


def test_a_phase_that_is_begun_and_never_ended_costs_bounded_memory(run: rankwatch.Run) -> None:
    """An exception caught between the two calls leaves one behind."""
    for _ in range(1000):
        run.begin_phase("forward")
    assert len(run._open_calls) <= 64


def test_batches_keep_no_batch_alive(run: rankwatch.Run) -> None:
    """`del batch` frees its memory, as with the loader itself."""

    class Batch:
        pass

    batch = next(iterator := iter(run.batches(Batch() for _ in range(2))))
    gone = weakref.ref(batch)
    del batch
    assert gone() is None
    next(iterator)


def test_batches_go_on_after_an_error_where_the_loader_does(run: rankwatch.Run) -> None:
    """A generator would end for good, and the epoch with it."""
    results: list[Any] = [1, ValueError(), 2]

    class Loader:
        def __iter__(self) -> Loader:
            return self

        def __next__(self) -> int:
            if not results:
                raise StopIteration
            if isinstance(found := results.pop(0), Exception):
                raise found
            return int(found)

    iterator = iter(run.batches(Loader()))
    assert next(iterator) == 1
    with pytest.raises(ValueError, match=r"^$"):
        next(iterator)
    assert list(iterator) == [2]


def test_the_loader_can_be_reached_whether_recorded_or_not(run: rankwatch.Run) -> None:
    """For `set_epoch` and the like: a full disk must not end the loop that calls it."""
    loader = [1, 2]
    for each in (run, rankwatch.DisabledRun()):
        assert each.batches(loader).loader is loader
        assert list(each.batches(loader)) == [1, 2]
