"""The last words of a process, in every way a process can end."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rankwatch
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from support.training.blackbox import box, of_kind, read

START = "import os, signal, sys, time, rankwatch\nrun = rankwatch.start(run='r')\n"


def end(directory: Path, code: str) -> tuple[int, list[str]]:
    """Exit status of a process and the lifecycle events it left."""
    env = {**os.environ, "RANKWATCH_DIR": str(directory)}
    done = subprocess.run([sys.executable, "-c", START + code], env=env, capture_output=True, check=False)
    return done.returncode, [each.name for each in of_kind(box(directory), RecordKind.LIFECYCLE)]


@pytest.mark.parametrize(
    ("code", "status", "events"),
    [
        ("run.finish()", 0, ["started", "finished"]),
        ("with run: pass", 0, ["started", "finished"]),
        ("with run: sys.exit(0)", 0, ["started", "finished"]),
        ("with run: sys.exit(3)", 3, ["started", "failed"]),
        ("with run: 1 / 0", 1, ["started", "failed"]),
        ("1 / 0", 1, ["started", "failed"]),
        ("run.preempted()", 0, ["started", "preempted"]),
        ("run.resumed(7); run.finish(); run.finish()", 0, ["started", "resumed", "finished"]),
        ("pass", 0, ["started", "exited"]),
        ("os.kill(os.getpid(), 9)", -9, ["started"]),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -15, ["started"]),
    ],
)
def test_every_end_is_in_the_record(tmp_path: Path, code: str, status: int, events: list[str]) -> None:
    """The exit status is what it would be without rankwatch."""
    assert end(tmp_path, code) == (status, events)


def test_the_type_of_the_exception_is_recorded(tmp_path: Path) -> None:
    """Also where nobody used the run as a context manager."""
    end(tmp_path, "raise MemoryError")
    failed = of_kind(box(tmp_path), RecordKind.LIFECYCLE)[-1]
    reader = Reader(box(tmp_path))
    assert reader.name(int(failed.payload[1])) == "MemoryError"
    reader.close()


def test_sigterm_leaves_the_stacks_of_all_threads_even_while_python_hangs(tmp_path: Path) -> None:
    """The handler is C; the process dies of SIGTERM as it would have."""
    code = (
        "import threading\nlock = threading.Lock(); lock.acquire()\nos.kill(os.getpid(), 15)\nlock.acquire()"
    )
    status, _ = end(tmp_path, code)
    assert status == -signal.SIGTERM
    stacks = box(tmp_path).with_suffix(".terminated").read_text()
    assert "most recent call first" in stacks


def test_a_handler_of_the_trainers_own_still_runs(tmp_path: Path) -> None:
    """SIGTERM as a request to save and leave."""
    code = (
        "def leave(*_): run.preempted(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\nos.kill(os.getpid(), 15)\ntime.sleep(60)"
    )
    assert end(tmp_path, code) == (0, ["started", "preempted"])


def test_a_handler_set_before_the_start_still_runs_too(tmp_path: Path) -> None:
    """faulthandler hands on to it."""
    code = (
        "import os, signal, sys, time, rankwatch\n"
        "def leave(*_): run.preempted(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\nrun = rankwatch.start(run='r')\n"
        "os.kill(os.getpid(), 15)\ntime.sleep(60)"
    )
    env = {**os.environ, "RANKWATCH_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=False, timeout=600)
    assert done.returncode == 0
    assert [each.name for each in of_kind(box(tmp_path), RecordKind.LIFECYCLE)][-1] == "preempted"


def test_an_orderly_end_leaves_only_the_black_box(tmp_path: Path) -> None:
    """No empty stack file, no socket."""
    end(tmp_path, "run.finish()")
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["0.blackbox"]


def test_second_start_of_a_run(tmp_path: Path) -> None:
    """A notebook's cell that is run again begins a new box; the run that it replaces ends without a word."""
    again = "other = rankwatch.start(run='r')\nwith other.step(): pass\nother.finish()"
    env = {**os.environ, "RANKWATCH_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", START + again], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["0.blackbox"]
    assert [each.name for each in of_kind(box(tmp_path), RecordKind.LIFECYCLE)] == ["started", "finished"]


def test_a_forked_child_writes_nothing_into_the_box(run: rankwatch.Run, tmp_path: Path) -> None:
    """Workers of a data loader inherit the run object."""
    pid = os.fork()
    if pid == 0:
        with run.step(), run.phase("forward"):
            run.scalar("loss", 1.0)
        run.finish()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert [each.kind for each in read(box(tmp_path))] == [RecordKind.LIFECYCLE]
    with run.step():
        pass
    assert [each.kind for each in read(box(tmp_path))][1:] == [RecordKind.STEP]


def test_the_end_is_told_even_where_the_table_of_names_is_full(run: rankwatch.Run, tmp_path: Path) -> None:
    """Without its name the end would read as the death of the rank."""
    for number in range(1000):
        run.scalar(f"norm/{number}", 1.0)
    run.finish()
    assert [each.name for each in of_kind(box(tmp_path), RecordKind.LIFECYCLE)] == ["started", "finished"]


def test_a_terminated_child_leaves_no_stacks_of_the_rank(tmp_path: Path) -> None:
    """`multiprocessing.Pool` ends its workers by SIGTERM: a rank killed later is lost, not terminated."""
    code = """
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
assert os.waitpid(pid, 0)[1] == signal.SIGTERM
os.kill(os.getpid(), 9)
"""
    assert end(tmp_path, code) == (-9, ["started"])
    assert box(tmp_path).with_suffix(".terminated").read_text() == ""


def test_a_handler_set_after_the_start_outlives_the_run(tmp_path: Path) -> None:
    """To take our own handler back must not take the trainer's."""
    code = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nrun.finish()\n"
        "os.kill(os.getpid(), 15)\ntime.sleep(60)"
    )
    assert end(tmp_path, code) == (7, ["started", "finished"])


def test_a_vanished_directory_keeps_no_hook_in_place(run: rankwatch.Run, tmp_path: Path) -> None:
    """One hook that cannot be taken out does not keep the others."""
    closed: list[bool] = []
    run.when_ended(lambda: closed.append(True))
    shutil.rmtree(tmp_path / "test")
    with run.step():
        pass
    run.finish()
    assert closed == [True]


def test_runs_one_after_another_in_a_process_leave_nothing_open(tmp_path: Path) -> None:
    """A search over hyperparameters starts a thousand."""
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        run = rankwatch.start(run="r", directory=tmp_path, flight_recorder=False, collectives=False)
        run.finish()
        del run
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
