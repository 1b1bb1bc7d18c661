"""How runs of zero-code recording end, in processes that really end so."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from rankwatch.conventions.vocabulary import Capability
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.summary import summary_lines
from support.processes.python import python
from support.training.blackbox import box, now

pytestmark = pytest.mark.process

BEGIN = """
import atexit, faulthandler, os, signal, sys, threading
from rankwatch.automatic import recording
run = recording.opened()
def step():
    run.begin_step(); run.end_step()
step()
"""


IN_A_THREAD = """
def train():
    step()
    raise ValueError("bad batch")
thread = threading.Thread(target=train)
thread.start()
thread.join()"""
"""The thread that trains ends by an exception. Python prints it, and the process ends with status 0."""


def ended(
    directory: Path, code: str, *, before: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """A rank of zero-code recording that runs this code after a step. before: it runs that before recording
    begins."""
    begin = BEGIN.replace("from rankwatch", before + "from rankwatch")
    return python(begin + code, directory=directory, **variables)


def headline(directory: Path) -> str:
    """The first line of the card, without the name of the run."""
    (run,) = directory.iterdir()
    return summary_lines(run)[0].removeprefix(f"rankwatch: run {run.name} ")


@pytest.mark.parametrize(
    ("code", "status", "how"),
    [
        ("", 0, "finished"),
        ("sys.exit()", 0, "finished"),
        ("sys.exit(0)", 0, "finished"),
        ("sys.exit(3)", 3, "failed by exit status 3"),
        ("sys.exit('no data')", 1, "failed by exit status no data"),
        ("exit(4)", 4, "failed by exit status 4"),
        ("quit('no disk')", 1, "failed by exit status no disk"),
        ("exit()", 0, "finished"),
        ("try: sys.exit(3)\nexcept SystemExit: step()", 0, "finished"),
        ("t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()", 0, "finished"),
        (IN_A_THREAD, 0, "failed by ValueError: bad batch"),
        (f"{IN_A_THREAD}\nstep()", 0, "finished"),
        (f"{IN_A_THREAD}\nsys.exit(3)", 3, "failed by exit status 3"),
        ("t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", 0, "finished"),
        ("raise ValueError('bad batch')", 1, "failed by ValueError: bad batch"),
        ("raise MemoryError", 1, "failed by lack of host memory (MemoryError)"),
        ("raise RuntimeError('CUDA error: out of memory')", 1, "failed by lack of GPU memory (RuntimeError"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "interrupted"),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, "terminated"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "lost"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, "lost by SIGSEGV: Segmentation fault"),
        ("os.abort()", -signal.SIGABRT, "lost by SIGABRT: Aborted"),
    ],
)  # fmt: skip
def test_end(code: str, status: int, how: str, tmp_path: Path) -> None:
    """The process ends as it would without us, and the card says how."""
    process = ended(tmp_path, code)
    assert process.returncode == status, process.stderr
    assert headline(tmp_path).startswith(how)
    assert now(box(tmp_path)).capabilities[Capability.EXIT_CAUSE] is None


def test_exit_of_the_script(tmp_path: Path) -> None:
    """The script has its own name for `sys.exit` from before the run."""
    assert ended(tmp_path, "exit(5)", before="from sys import exit\n").returncode == 5
    assert headline(tmp_path).startswith("failed by exit status 5")


def test_recorded_before_other_hooks(tmp_path: Path) -> None:
    """An exception is recorded before the hook that was there, which is called and may end the process."""
    theirs = "def theirs(*error): print(error[1], flush=True); os._exit(7)\nsys.excepthook = theirs\n"
    process = ended(tmp_path, "raise ValueError('boom')", before=theirs)
    assert (process.returncode, process.stdout) == (7, "boom\n")
    (directory,) = tmp_path.iterdir()
    assert diagnose_run(directory).why == "ended by ValueError: boom"


def test_same_message_as_without(tmp_path: Path) -> None:
    """The traceback that Python prints shows nothing of us."""
    process = ended(tmp_path, "raise ValueError('boom')")
    assert process.stderr.endswith("ValueError: boom\n") and "rankwatch/" not in process.stderr


def test_users_handlers(tmp_path: Path) -> None:
    """Handlers of the user for SIGTERM and crashes go on working, installed before or after."""
    before = "signal.signal(signal.SIGTERM, lambda *_: print('theirs', flush=True))\n"
    code = "os.kill(os.getpid(), signal.SIGTERM)\nfaulthandler.enable()\nos.abort()\n"
    process = ended(tmp_path, code, before=before)
    assert process.stdout == "theirs\n" and "Fatal Python error: Aborted" in process.stderr


def test_crash_of_a_child(tmp_path: Path) -> None:
    """A forked child that crashes is not the rank."""
    process = ended(tmp_path, "if os.fork() == 0: os.abort()\nos.wait()")
    assert process.returncode == 0
    assert headline(tmp_path).startswith("finished")
    assert not list(tmp_path.glob("*/*.crashed"))


def test_error_file(tmp_path: Path) -> None:
    """A rank that cannot say how it ended has failed by what torchrun's error file says."""
    error = tmp_path / "error.json"
    error.write_text('{"message": {"message": "ValueError: bad batch"}}')
    ended(tmp_path / "boxes", "os._exit(1)", TORCHELASTIC_ERROR_FILE=str(error))
    (directory,) = (tmp_path / "boxes").iterdir()
    assert diagnose_run(directory).why == "ended by ValueError: bad batch"


def test_nothing_is_left_of_the_hooks(tmp_path: Path) -> None:
    code = (
        "assert sys.excepthook is not sys.__excepthook__ and hasattr(sys.exit, '__wrapped__')\n"
        "run.finish()\nassert sys.excepthook is sys.__excepthook__ and not hasattr(sys.exit, '__wrapped__')"
    )
    assert ended(tmp_path, code).returncode == 0
