"""What the kernel shows of a rank's process to any reader of /proc: stopped, blocked, ended, short of a CPU.

A rank that a signal stopped inside of a collective looks like its peers, by every count of collectives. The
state of its process tells it apart. Only the wait channel needs root or the same user.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankwatch_agent.sources.kernel_files import names_or_empty, text_or_empty

STOPPED = frozenset("Tt")
"""A signal such as SIGSTOP stopped the process, or a debugger holds it."""
ENDED = "Z"
"""The main thread has ended."""
BLOCKED = "D"
"""A thread sleeps in the kernel, and no signal wakes it: it waits for a disk, a file server or a device."""
_STATE_FIELD, _START_FIELD = 0, 19
"""Of /proc/PID/stat, counted behind the name, which may hold anything."""
_MOST_DIGITS = 20
"""Of a number of 64 bits."""
_SWITCHES = ("voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")


@dataclass(frozen=True, kw_only=True)
class ProcessFacts:
    """A rank's process at one moment."""

    pid: int
    state: str
    """Letter of the main thread's state, or `D` where another thread is in that one."""
    wait_channel: str = ""
    """Function of the kernel in which the thread sleeps; empty where it runs or that may not be read."""
    cpu_wait_share: float | None = None
    """Part of the main thread's life in which it was ready to run and had no CPU."""
    blocked: Mapping[int, int] = field(default_factory=dict)
    """Threads in state `D`, and how often each was scheduled: one with the same number has not run since."""

    @property
    def stopped(self) -> bool:
        """Whether no thread of the process runs until somebody continues it."""
        return self.state in STOPPED

    def as_json(self) -> dict[str, object]:
        """Return what is known, for a person or a program."""
        return {name: value for name, value in vars(self).items() if value not in (None, "", {})}


def read_facts(procfs: Path, pid: int) -> ProcessFacts | None:
    """Return what is seen of a process; None where it is gone or hidden."""
    process = procfs / str(pid)
    stat = _stat(process)
    if stat is None:
        return None
    state = stat[_STATE_FIELD]
    blocked = {} if state in STOPPED or state == ENDED else _blocked(process)
    sleeper = process / "task" / str(min(blocked)) if blocked and pid not in blocked else process
    return ProcessFacts(
        pid=pid,
        state=BLOCKED if blocked else state,
        wait_channel=_wait_channel(sleeper),
        cpu_wait_share=_cpu_wait_share(procfs, process, stat),
        blocked=blocked,
    )


def since(before: ProcessFacts, now: ProcessFacts | None) -> ProcessFacts:
    """Return the facts of now; `D` only where one thread has been in that state at both moments.

    A thread that waits for a disk is in it for a moment again and again.
    """
    if now is None or now.pid != before.pid:
        return replace(before, state="", wait_channel="", blocked={}) if before.state == BLOCKED else before
    if now.state == BLOCKED and not now.blocked.items() & before.blocked.items():
        return replace(now, state="S", wait_channel="", blocked={})
    return now


def _stat(directory: Path) -> list[str] | None:
    """Return the fields behind the name."""
    fields = text_or_empty(directory / "stat").rpartition(")")[2].split()
    return fields if len(fields) > _START_FIELD else None


def _blocked(process: Path) -> dict[int, int]:
    found = {}
    for name in names_or_empty(str(process / "task")):
        stat = _stat(process / "task" / name)
        if stat is not None and stat[_STATE_FIELD] == BLOCKED and name.isdecimal():
            found[int(name)] = _switches(process / "task" / name)
    return found


def _switches(thread: Path) -> int:
    lines = text_or_empty(thread / "status").splitlines()
    counts = [line.split()[-1] for line in lines if line.startswith(_SWITCHES)]
    return sum(int(each) for each in counts if each.isdecimal() and len(each) <= _MOST_DIGITS)


def _wait_channel(thread: Path) -> str:
    """Return the name; the kernel shows 0 to readers without permission, and for a thread that runs."""
    name = text_or_empty(thread / "wchan").strip()
    return name if name not in ("", "0") and name.isascii() and name.isprintable() else ""


def _cpu_wait_share(procfs: Path, process: Path, stat: list[str]) -> float | None:
    """Derive it from /proc/PID/schedstat: its second number is the time on a run queue, in nanoseconds."""
    try:
        waited = int(text_or_empty(process / "schedstat").split()[1]) / 1e9
        up = float(text_or_empty(procfs / "uptime").split()[0])
        age = up - int(stat[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    except (ValueError, IndexError, OverflowError):
        return None
    return min(1.0, waited / age) if age > 0.0 else None
