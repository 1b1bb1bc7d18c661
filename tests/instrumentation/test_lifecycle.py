"""Lifecycle events, for every way in which a process can end."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

import rankwatch
from rankwatch.blackbox.layout import RecordKind
from rankwatch_agent.training.boxes.follower import RankFollower
from rankwatch_agent.training.boxes.totals import RankTotals
from support.processes.python import python
from support.training.blackbox import box, now, of_kind, read

pytestmark = pytest.mark.process

START = (
    "import os, signal, sys, time, rankwatch\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell lets its background ignore it
    "run = rankwatch.start(run='r')\n"
)


def end(directory: Path, code: str) -> tuple[int, list[str]]:
    """Run a process to its end; its exit status and its lifecycle events."""
    done = python(START + code, directory=directory)
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
def test_every_end(tmp_path: Path, code: str, status: int, events: list[str]) -> None:
    """The end is recorded, and the exit status is the same as without rankwatch."""
    assert end(tmp_path, code) == (status, events)


def test_sigterm_while_python_hangs(tmp_path: Path) -> None:
    """The stacks of all threads are written, by a handler in C, and the process still dies of SIGTERM."""
    code = (
        "import threading\nlock = threading.Lock(); lock.acquire()\nos.kill(os.getpid(), 15)\nlock.acquire()"
    )
    status, _ = end(tmp_path, code)
    assert status == -signal.SIGTERM
    stacks = box(tmp_path).with_suffix(".terminated").read_text()
    assert "most recent call first" in stacks


def test_handler_installed_before_start(tmp_path: Path) -> None:
    """The trainer's own handler for SIGTERM still runs, so that it can save and exit: faulthandler calls the
    handler that it replaced."""
    handler = "def leave(*_): run.preempted(); sys.exit(0)\nsignal.signal(signal.SIGTERM, leave)\n"
    code = START.replace("run =", f"{handler}run =") + "os.kill(os.getpid(), 15)\ntime.sleep(60)"
    python(code, directory=tmp_path, check=True)
    assert [each.name for each in of_kind(box(tmp_path), RecordKind.LIFECYCLE)][-1] == "preempted"


def test_handler_installed_after_start(tmp_path: Path) -> None:
    """The end of the run removes our handler, not the trainer's."""
    code = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nrun.finish()\n"
    assert end(tmp_path, code + "os.kill(os.getpid(), 15)\ntime.sleep(60)") == (7, ["started", "finished"])


def test_files_after_the_end(tmp_path: Path) -> None:
    """Only the black box remains: no empty stack file and no socket."""
    end(tmp_path, "run.finish()")
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["0.blackbox"]


def test_second_start_of_a_run(tmp_path: Path) -> None:
    """A notebook cell that runs again begins a new box. One line says that the first run has ended."""
    again = "other = rankwatch.start(run='r')\nwith other.step(): pass\nother.finish()"
    done = python(START + again, directory=tmp_path, check=True)
    assert done.stderr == "rankwatch.start was called again: run 'r' ends here\n"
    assert [path.name for path in (tmp_path / "r").glob("*.*")] == ["0.blackbox"]
    assert [each.name for each in of_kind(box(tmp_path), RecordKind.LIFECYCLE)] == ["started", "finished"]


def test_forked_child(run: rankwatch.Run, tmp_path: Path) -> None:
    """A forked child, such as a worker of a data loader, writes nothing into the box of the rank."""
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


def test_full_table_of_names(run: rankwatch.Run, tmp_path: Path) -> None:
    """The end keeps its name. Without the name a reader would take the rank for dead."""
    for number in range(1000):
        run.scalar(f"norm/{number}", 1.0)
    run.finish()
    assert [each.name for each in of_kind(box(tmp_path), RecordKind.LIFECYCLE)] == ["started", "finished"]


def test_terminated_child(tmp_path: Path) -> None:
    """A child that dies of SIGTERM, as in `multiprocessing.Pool`, writes no stacks for the rank. Otherwise a
    rank that is killed later would look terminated."""
    code = (
        "pid = os.fork()\n"
        "if pid == 0: os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n"
        "assert os.waitpid(pid, 0)[1] == signal.SIGTERM\nos.kill(os.getpid(), 9)"
    )
    assert end(tmp_path, code) == (-9, ["started"])
    assert box(tmp_path).with_suffix(".terminated").read_text() == ""


def test_vanished_directory(run: rankwatch.Run, tmp_path: Path) -> None:
    """A hook that cannot be removed does not keep the others in place."""
    closed: list[bool] = []
    run.when_ended(lambda: closed.append(True))
    shutil.rmtree(tmp_path / "test")
    with run.step():
        pass
    run.finish()
    assert closed == [True]


def test_many_runs_in_one_process(tmp_path: Path) -> None:
    """They leave no file open. A hyperparameter search starts a thousand runs."""
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        rankwatch.start(run="r", directory=tmp_path, flight_recorder=False, collectives=False).finish()
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.parametrize(
    "code",
    [
        "signal.raise_signal(signal.SIGINT)",
        "with run: signal.raise_signal(signal.SIGINT)",
        "class Stopped(KeyboardInterrupt): pass\nrun.fail(Stopped())",
    ],
)
def test_interrupted(tmp_path: Path, code: str) -> None:
    """Ctrl-C is the user's wish, not a failure of the run."""
    assert end(tmp_path, code)[1] == ["started", "interrupted"]


def followed(directory: Path) -> RankTotals:
    """What an agent reads in the box, whose process has ended."""
    totals = RankTotals(lambda _: None, max_names=100)
    with closing(RankFollower(box(directory), totals)) as rank:
        rank.poll(time.monotonic(), to_end=True)
    return totals


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise RuntimeError('no memory.\\n  Tried \\x1b[31m 2 GiB')", "no memory. Tried ?[31m 2 GiB"),
        ("with run: raise ValueError('bad batch 7')", "bad batch 7"),
        ("run.fail(ValueError)", ""),
        ("run.fail(ValueError('\\udcff' + 'é' * 1000))", "?" + "é" * 124),
        ("class Odd(Exception):\n    __str__ = None\nrun.fail(Odd())", ""),
    ],
)  # fmt: skip
def test_message_of_exception(tmp_path: Path, code: str, message: str) -> None:
    """The beginning of the message is recorded on one line, printable, whatever the exception does."""
    _, events = end(tmp_path, code)
    assert events == ["started", "failed"]
    failure = followed(tmp_path).lifecycle.last_failure
    assert failure is not None
    assert failure.message == message


def test_message_with_full_table_of_names(run: rankwatch.Run, tmp_path: Path) -> None:
    """Type and message have places of their own."""
    for number in range(1000):
        run.scalar(f"norm/{number}", 1.0)
    run.fail(ValueError("bad batch"))
    found = followed(tmp_path).lifecycle
    assert found.last_failure is not None
    assert found.last_failure[:3] == ("ValueError", "exception", "bad batch")
    assert list(found.failures.values()) == [1]
    assert now(box(tmp_path)).names_refused > 400


def test_dropped_name(run: rankwatch.Run, caplog: pytest.LogCaptureFixture) -> None:
    """The first name without a place is named, once: its values are lost."""
    for number in range(600):
        run.scalar(f"norm/{number}", 1.0)
    (record,) = caplog.records
    assert "no place for the name 'norm/4" in record.getMessage()
