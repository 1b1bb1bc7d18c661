"""Runs another program with limits on time, memory and output, at low priority."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from selectors import EVENT_READ, PollSelector
from typing import NamedTuple

from rankwatch.untrusted.children import NICE, Limits

_CHUNK_BYTES = 1 << 16
_SLICE_SECONDS = 0.05
_STDERR_BYTES = 4096
"""The end of stderr that is kept."""


class ProcessResult(NamedTuple):
    """The result of a program."""

    output: bytes
    """Its stdout, up to the limit."""
    error: str
    """One sentence; empty where it ended with status 0 within its limits."""


def run_limited(
    command: Sequence[str],
    limits: Limits,
    environ: Mapping[str, str] | None = None,
    *,
    monotonic: Callable[[], float] = time.monotonic,
) -> ProcessResult:
    """Run a program until it ends or reaches a limit. Then it is killed, with all processes that it started.

    monotonic: the clock for its time, in seconds.
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
        return ProcessResult(b"", f"could not start {name}: {error}")
    with process:
        try:
            _restrict(process.pid, limits.memory_bytes)
            output, stderr, failure = _read(process, limits, monotonic)
            failure = failure or _status_error(process, limits.seconds, stderr)
            return ProcessResult(output, f"{name} {failure}" if failure else "")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _restrict(pid: int, memory_bytes: int) -> None:
    """Limit the running program: code between fork and exec is not safe in a process with threads."""
    with contextlib.suppress(OSError):  # it has ended already
        resource.prlimit(pid, resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
        # If memory runs out, the kernel kills it before the agent.
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


def _read(
    process: subprocess.Popen[bytes], limits: Limits, monotonic: Callable[[], float]
) -> tuple[bytes, bytes, str]:
    """Return stdout, the end of stderr and an error, while the program runs."""
    assert process.stdout is not None
    assert process.stderr is not None
    output, stderr = bytearray(), bytearray()
    end = monotonic() + limits.seconds
    with PollSelector() as selector:  # select() fails for descriptors from 1024 up
        selector.register(process.stdout, EVENT_READ, output)
        selector.register(process.stderr, EVENT_READ, stderr)
        while selector.get_map():
            left = end - monotonic()
            if left <= 0.0:
                return bytes(output), bytes(stderr), f"did not end within {limits.seconds:g} s"
            for key, _ in selector.select(min(left, _SLICE_SECONDS)):
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if chunk:
                    key.data.extend(chunk)
                else:
                    selector.unregister(key.fd)
            del stderr[:-_STDERR_BYTES]
            if len(output) > limits.output_bytes:
                del output[limits.output_bytes :]
                return bytes(output), bytes(stderr), f"printed more than {limits.output_bytes} bytes"
            if process.poll() is not None and not selector.select(0.0):
                break  # it has ended; a child may still hold the output open
    return bytes(output), bytes(stderr), ""


def _status_error(process: subprocess.Popen[bytes], seconds: float, stderr: bytes) -> str:
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"did not end within {seconds:g} s"
    if status == 0:
        return ""
    last = stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    ending = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    return f"{ending}: {last[0][:300]}" if last else ending
