"""JAX: ranks, steps by annotations, compilation, and the checkpoints of Orbax."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rankwatch
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from support.training.blackbox import box, name_of, now, of_kind, read

jax = pytest.importorskip("jax")
from rankwatch.integrations import jax as integration  # noqa: E402

pytestmark = pytest.mark.frameworks


@pytest.fixture
def jax_run(tmp_path: Path) -> Iterator[rankwatch.Run]:
    """A run with what JAX reports. It ends after the test."""
    run = integration.start(run="test", directory=tmp_path, collectives=False, flight_recorder=False)
    assert isinstance(run, rankwatch.Run)
    yield run
    run.finish()


def train(steps: int) -> None:
    for number in range(10, 10 + steps):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            pass
        with jax.profiler.StepTraceAnnotation("eval", step_num=number):
            pass


def test_steps_by_annotation(jax_run: rankwatch.Run, tmp_path: Path) -> None:
    """A step lasts until the next one begins, because JAX returns before the device is done. The last one
    ends with the run. Annotations of another name are no steps."""
    train(3)
    jax_run.finish()
    steps = of_kind(box(tmp_path), RecordKind.STEP)
    assert [each.payload for each in steps] == [(10, 0), (11, 0), (12, 0)]
    assert steps[0].end <= steps[1].start <= steps[1].end <= steps[2].start


def test_evaluation_ends_no_step(jax_run: rankwatch.Run, tmp_path: Path) -> None:
    """An evaluation by the explicit call lies in the step that is open, as phase `evaluation`."""
    train(1)
    with jax_run.evaluation():
        pass
    train(1)
    jax_run.finish()
    step, evaluation = of_kind(box(tmp_path), RecordKind.STEP)[0], of_kind(box(tmp_path), RecordKind.PHASE)[0]
    assert step.start <= evaluation.start <= evaluation.end <= step.end


def test_compilation_is_a_phase(jax_run: rankwatch.Run, tmp_path: Path) -> None:
    """The first call of a jitted function is traced and compiled within its step; the second is not."""
    function = jax.jit(lambda x: x * 2 + 1)
    value = jax.numpy.ones(3)
    for _ in range(2):
        with jax_run.step():
            function(value)
    first, second = of_kind(box(tmp_path), RecordKind.STEP)
    compiled = [each for each in of_kind(box(tmp_path), RecordKind.PHASE) if each.name == "compile"]
    assert any(first.start <= each.start <= each.end <= first.end for each in compiled)
    assert not any(second.start <= each.end for each in compiled)


def test_nothing_stays_behind(tmp_path: Path) -> None:
    """After the end of the run JAX has its own annotation and listeners again."""
    from jax._src import monitoring

    def state() -> tuple[Any, ...]:
        annotation = jax.profiler.StepTraceAnnotation
        return annotation.__init__, annotation.__enter__, len(monitoring.get_event_duration_listeners())

    before = state()
    run = integration.start(run="test", directory=tmp_path, collectives=False, flight_recorder=False)
    assert state() != before
    run.finish()
    assert state() == before


def test_own_run_without_the_phase(run: rankwatch.Run) -> None:
    """A run that does not declare the phase is refused in one sentence."""
    with pytest.raises(rankwatch.UsageError, match=r"the run has no phase 'compile': call rankwatch.start"):
        integration.listen(run)


def test_failing_listener(jax_run: rankwatch.Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A failure of ours is counted and does not end the compilation that JAX reports."""
    monkeypatch.setattr(jax_run._writer, "append", lambda *_: 1 / 0)
    assert jax.jit(lambda x: x - 3)(jax.numpy.ones(2)).sum() == -4
    assert now(box(tmp_path)).errors > 0


def test_orbax(jax_run: rankwatch.Run, tmp_path: Path) -> None:
    """A save and a load of Orbax are recorded with their stages and size; asynchronous writing is not phase
    `checkpoint`."""
    orbax = pytest.importorskip("orbax.checkpoint")
    state = {"weights": jax.numpy.ones((256, 256))}
    jax_run.begin_step(6)
    jax_run.end_step()
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", state)
        checkpointer.wait_until_finished()
        checkpointer.restore(tmp_path / "saved", state)
    records = of_kind(box(tmp_path), RecordKind.CHECKPOINT)
    whole = {each.name: each.payload for each in records if not each.payload[2]}
    assert [*whole] == ["save", "load"]
    size, step, _, failed, blocked_seconds = whole["save"]
    assert (step, failed) == (6, 0) and size >= 256 * 256 * 4
    save = next(each for each in records if each.name == "save" and not each.payload[2])
    phases = [each for each in of_kind(box(tmp_path), RecordKind.PHASE) if each.name == "checkpoint"]
    assert phases[0].end < save.end
    assert blocked_seconds == pytest.approx(phases[0].end - phases[0].start, abs=0.01)
    stages = {name_of(box(tmp_path), each.payload[2]) for each in records}
    assert {"blocking", "finalize"} <= stages


def test_failed_save_of_orbax(jax_run: rankwatch.Run, tmp_path: Path) -> None:
    """Orbax reports no failure. A save that is still there when the wait for it is over has failed; one that
    the next save finds at work has not."""
    from jax import monitoring

    def begin(waited: bool = True) -> None:
        monitoring.record_event("/jax/orbax/write/async/start")
        if waited:
            monitoring.record_event_duration_secs("/jax/orbax/write/blocking_wait_prev_duration_secs", 0.0)

    def end() -> None:
        monitoring.record_event_duration_secs("/jax/orbax/write/async/total_duration_secs", 0.5)

    begin()
    begin()  # the first one has failed
    begin(waited=False)
    end()
    end()
    operations = of_kind(box(tmp_path), RecordKind.CHECKPOINT)
    assert [each.payload[3] for each in operations if not each.payload[2]] == [1, 0, 0]


@pytest.mark.process
def test_two_processes(tmp_path: Path) -> None:
    """Processes of `jax.distributed` are ranks of one run, and calculate what one without rankwatch does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "RANKWATCH_DIR": str(tmp_path), "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, loop_module_path(), "2"]
    ranks = [
        subprocess.Popen([*command, str(rank), str(port)], env=env, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    printed = [each.communicate(timeout=120)[0] for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0]
    boxes = sorted(tmp_path.glob(f"*/*{layout.SUFFIX}"))
    assert [each.name for each in boxes] == ["0.blackbox", "1.blackbox"] and boxes[0].parent == boxes[
        1
    ].parent
    for each in boxes:
        assert [one.payload[0] for one in read(each) if one.kind == RecordKind.STEP] == [0, 1, 2, 3, 4]
    off = subprocess.run(
        [*command[:2], "1", "0", "0"],
        env={**env, "RANKWATCH_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {*printed} == {off.stdout}


def loop_module_path() -> str:
    return str(Path(__file__).parents[2] / "support" / "frameworks" / "jax_loop.py")
