"""Programs that the agent runs, with real processes: limits and failures."""

from __future__ import annotations

import os
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rankwatch.untrusted.children import NICE, Limits
from rankwatch_agent.incidents.limited_process import ProcessResult, run_limited
from support.agent.process import DEADLINE_SECONDS, ManualClock, until

pytestmark = pytest.mark.process

PATIENT = Limits(seconds=DEADLINE_SECONDS, cpu_seconds=600, memory_bytes=1 << 30, output_bytes=1000)
_LEAST_PRIORITY = 19
"""The kernel raises no niceness beyond it."""


def python(code: str, limits: Limits = PATIENT) -> ProcessResult:
    """Run a program in Python."""
    return run_limited([sys.executable, "-c", code], limits)


def test_output() -> None:
    """Stdout alone, and no error."""
    assert python("import sys; print('found'); print('noise', file=sys.stderr)") == ProcessResult(
        b"found\n", ""
    )


def test_failure() -> None:
    """The error has the exit status and the last line. A program that cannot be started fails too."""
    ended = python("import sys; print('part'); print('a\\nlast word', file=sys.stderr); sys.exit(3)")
    assert ended.output == b"part\n"
    assert ended.error.endswith("ended with status 3: last word")
    assert "No such file" in run_limited(["/nowhere/py-spy"], PATIENT).error


def test_many_open_files() -> None:
    """A program runs although the agent has more than 1,024 files open, where select() fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip(f"this machine allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert python("print('found')") == ProcessResult(b"found\n", "")
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_hung_program(tmp_path: Path) -> None:
    """It is killed with its children, even with a child that holds the output open."""
    note = tmp_path / "pid"
    code = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        f"open({str(note)!r}, 'w').write(f'{{child.pid}}\\n')\n"
        "time.sleep(1000)\n"
    )
    clock = ManualClock()
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(run_limited, [sys.executable, "-c", code], PATIENT, monotonic=clock)
        until(lambda: note.exists() and note.read_text().endswith("\n"), "it has started a child")
        until(lambda: past(clock) and hanging.done(), "it is killed")
        ended = hanging.result()
    assert ended.error.endswith(f"did not end within {PATIENT.seconds:g} s")
    child = int(note.read_text())
    until(lambda: not alive(child), "the child is gone")


def past(clock: ManualClock) -> bool:
    """Let the time of a program pass; repeatedly, because the program may not have started yet."""
    clock.now += PATIENT.seconds
    return True


def test_surviving_child_is_killed(tmp_path: Path) -> None:
    """It holds the output open."""
    ended = python("import subprocess; print(subprocess.Popen(['sleep', '1000']).pid, flush=True)")
    assert ended.error == ""
    until(lambda: not alive(int(ended.output)), "the child is gone")


def test_output_limit() -> None:
    """A program that prints endlessly is killed. Stderr does not count."""
    ended = python("import sys\nwhile True: sys.stderr.write('y' * 5000); sys.stdout.write('x' * 5000)")
    assert ended.output == b"x" * 1000
    assert ended.error.endswith("printed more than 1000 bytes")


def test_memory_limit_and_priority() -> None:
    """Training comes first."""
    until_bounded = (
        "import resource, time\n"
        f"while resource.getrlimit(resource.RLIMIT_AS)[0] != {PATIENT.memory_bytes}: time.sleep(0.01)\n"
    )
    ended = python(f"{until_bounded}x = bytes(2 << 30)")
    assert "MemoryError" in ended.error
    niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + NICE, _LEAST_PRIORITY)
    code = (
        "import os, time\n"
        f"while os.getpriority(os.PRIO_PROCESS, 0) != {niceness}: time.sleep(0.01)\n"
        "while open('/proc/self/oom_score_adj').read() != '1000\\n': time.sleep(0.01)\n"
    )
    assert python(code).error == ""


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not yet reaped does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
