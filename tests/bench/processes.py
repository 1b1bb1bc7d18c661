"""Processes and files of a benchmark: started, watched, and removed at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from .result import BenchError

_END_SECONDS = 40.0
"""Longest wait after SIGTERM: torchrun itself gives its ranks 30 s."""
_START_SECONDS = 60.0
_LOG_TAIL = 2000
_Result = TypeVar("_Result")


@contextmanager
def background(
    command: Sequence[str], log: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended with the block. `log` receives its output."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=_environment(variables or {}), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL if it does not end."""
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, what: str) -> None:
    """Poll the condition. Raises BenchError if the process ends or a minute passes first."""
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        if process.poll() is not None:
            raise BenchError(f"{what}: the process ended with status {process.returncode}: {tail(log)}")
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: nothing within {_START_SECONDS:g} s: {tail(log)}")
        time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free now, for programs that do not report which one they took."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def tail(log: Path) -> str:
    """The end of a log."""
    return log.read_text(errors="replace")[-_LOG_TAIL:].strip()


@contextmanager
def rankwatch_agent(
    directory: Path, blackboxes: Path, *flags: str, variables: Mapping[str, str] | None = None
) -> Iterator[tuple[int, str]]:
    """A real agent on a free loopback port; yields its process id and HOST:PORT."""
    address, log = directory / "agent-address", directory / "agent.log"
    command = [sys.executable, "-m", "rankwatch_cli", "agent", "--listen", "127.0.0.1:0"]
    command += ["--address-file", str(address), "--directory", str(blackboxes)]
    command += ["--state-directory", str(directory / "state"), *flags]
    with background(command, log, variables) as process:
        wait_until(address.exists, process, log, "could not start the agent")
        yield process.pid, address.read_text().strip()


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without settings of rankwatch, and `variables`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RANKWATCH_")}
    return {**inherited, **variables}


_MEMORY = Path("/dev/shm")
"""Memory, as for black boxes in production: a disk would be measured instead of rankwatch."""


def temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """A directory in memory where possible, removed with the block."""
    return tempfile.TemporaryDirectory(prefix="rankwatch-bench-", dir=_MEMORY if _MEMORY.is_dir() else None)


def exit_on_signals() -> None:
    """Let Ctrl-C and SIGTERM raise SystemExit, so that every `with` block ends its processes.

    The exit status is the one a shell expects.
    """
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _exit)


def _exit(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def in_processes(
    function: Callable[..., _Result], arguments: Sequence[tuple[object, ...]], processes: int
) -> list[_Result]:
    """The results, in order; the same whatever the number of processes."""
    if processes == 1:
        return [function(*each) for each in arguments]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(function, *zip(*arguments, strict=True)))
