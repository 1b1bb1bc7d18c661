"""Runs another program for the agent: with little memory, low priority, an end, and bounded output."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

NICE = 10
"""Added to the agent's own niceness: the node belongs to training."""
_CHUNK_BYTES = 1 << 16
_SLICE_SECONDS = 0.05
_SAID_BYTES = 4096
"""Of what it says on stderr; the end of it counts."""


class Limits(NamedTuple):
    """What a program may take."""

    seconds: float
    output_bytes: int
    memory_bytes: int
    """Address space, RLIMIT_AS."""


class Ended(NamedTuple):
    """How a program ended."""

    output: bytes
    """Its stdout up to the bound."""
    problem: str
    """One sentence; empty where it ended with status 0 in time and within its bounds."""


def run_limited(
    command: Sequence[str],
    limits: Limits,
    environ: Mapping[str, str] | None = None,
    *,
    monotonic: Callable[[], float] = time.monotonic,
) -> Ended:
    """Run a program to its end, or to that of its limits: then it is killed, and all it started.

    monotonic: the clock, in seconds, that its time is measured on.
    """
    name = Path(command[0]).name
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=environ,
        )
    except (OSError, ValueError) as error:
        return Ended(b"", f"could not start {name}: {error}")
    with process:
        try:
            _restrict(process.pid, limits.memory_bytes)
            output, said, problem = _read(process, limits, monotonic)
            problem = problem or _status(process, limits.seconds, said)
            return Ended(output, f"{name} {problem}" if problem else "")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _restrict(pid: int, memory_bytes: int) -> None:
    """After the start: code between fork and exec is not safe in a process with threads."""
    with contextlib.suppress(OSError):  # it has ended already
        resource.prlimit(pid, resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
        # Where memory is short, it goes before the agent.
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


def _read(
    process: subprocess.Popen[bytes], limits: Limits, monotonic: Callable[[], float]
) -> tuple[bytes, bytes, str]:
    """Output, the end of what was said, and what was wrong, while the program runs."""
    assert process.stdout is not None
    assert process.stderr is not None
    output, said = bytearray(), bytearray()
    sinks = {process.stdout.fileno(): output, process.stderr.fileno(): said}
    end = monotonic() + limits.seconds
    while sinks:
        left = end - monotonic()
        if left <= 0.0:
            return bytes(output), bytes(said), f"did not end within {limits.seconds:g} s"
        for file in select.select(list(sinks), [], [], min(left, _SLICE_SECONDS))[0]:
            chunk = os.read(file, _CHUNK_BYTES)
            if not chunk:
                del sinks[file]
                continue
            sinks[file] += chunk
        del said[:-_SAID_BYTES]
        if len(output) > limits.output_bytes:
            del output[limits.output_bytes :]
            return bytes(output), bytes(said), f"said more than {limits.output_bytes} bytes"
        if process.poll() is not None and not select.select(list(sinks), [], [], 0.0)[0]:
            break  # it has ended; a child that kept its output open is not waited for
    return bytes(output), bytes(said), ""


def _status(process: subprocess.Popen[bytes], seconds: float, said: bytes) -> str:
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"did not end within {seconds:g} s"
    if status == 0:
        return ""
    last = said.decode("utf-8", "replace").strip().splitlines()[-1:]
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    return f"{how}: {last[0][:300]}" if last else how
