"""The process that verifies one checkpoint, at the lowest priority and with the rights of its owner, and the
records of what came out, kept across restarts of the agent: no checkpoint is read twice."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from select import PIPE_BUF
from typing import Any, NamedTuple

from rankwatch.untrusted.children import Limits, Owner, confined, memory_file
from rankwatch_agent.runtime.state_file import StateFile
from rankwatch_agent.runtime.turns import excess
from rankwatch_agent.training.life.ends import memory_cgroup

MOST_AT_ONCE = 4
"""Processes that run at a time."""
_MOST_OUTPUT_BYTES = 8 << 20
LONGEST_SECONDS = 12 * 3600.0
"""A file server that never answers holds a process; past this it is killed."""
_REAP_SECONDS = 0.2
"""One that waits in the kernel ends later."""
_LIMITS = Limits(
    seconds=LONGEST_SECONDS,
    cpu_seconds=3 * 3600,  # for 10 TB; a checksum takes a second of each GB
    memory_bytes=4 << 30,
    output_bytes=_MOST_OUTPUT_BYTES,
)


class VerifyingProcess:
    """A verification that runs. `result` is None while it does."""

    def __init__(
        self,
        path: Path,
        *,
        owner: Owner,
        command: Sequence[str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start it. It reads nothing before it has a rate. Raises OSError."""
        self._monotonic = monotonic
        self._began = monotonic()
        self._rate = 0.0
        place = os.fsencode(path) + b"\0"
        if len(place) > PIPE_BUF:  # the longest path of the system, and what a pipe takes at once
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        limits = _LIMITS._replace(memory_bytes=memory_bytes())
        name = "rankwatch.checkpoint_files.__main__"
        self._output = memory_file()
        try:
            self._process = subprocess.Popen(
                command or confined(name, str(owner.uid), limits=limits, owner=owner),
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
                cwd="/",
                # Else the archive of all locales may count as memory of the process.
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError:
            self._output.close()
            raise
        assert self._process.stdin is not None
        self._input = self._process.stdin
        os.set_blocking(self._input.fileno(), False)
        self._write(place)

    @property
    def has_ended(self) -> bool:
        """False while it runs, and while it waits in the kernel after it was killed."""
        return self._process.poll() is not None

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._monotonic() - self._began

    def set_rate(self, bytes_per_second: float) -> None:
        """Have it read as fast from now on. Set it again from time to time: a process that its user has
        stopped leaves no room for it."""
        if bytes_per_second != self._rate and self._write(f"{bytes_per_second!r}\n".encode()):
            self._rate = bytes_per_second

    def result(self) -> dict[str, Any] | None:
        """Return what it printed, once it is over: one of `result`, `gone`, `error`."""
        if not self.has_ended:
            late, stopped = self.seconds >= LONGEST_SECONDS, self._is_stopped()
            if not late and not stopped:
                return None
            self.kill()
            why = "its user has stopped it" if stopped else f"it did not end within {LONGEST_SECONDS:g} s"
            return {"error": f"a verification was given up: {why}"}
        try:
            self._output.seek(0)
            found = json.loads(self._output.read(_MOST_OUTPUT_BYTES))
            if isinstance(found, dict):
                return found
        except (ValueError, RecursionError):
            pass
        finally:
            self._close()
        return {"error": f"it ended with status {self._process.returncode}"}

    def kill(self) -> None:
        """End it now. One that this process has no right to end sees that its input has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP_SECONDS)

    def _is_stopped(self) -> bool:
        """Return True if somebody has stopped it by a signal, so that it would hold its place for hours."""
        try:
            status = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return status.rpartition(")")[2].split()[:1] == ["T"]

    def _write(self, line: bytes) -> bool:
        """Write at most PIPE_BUF bytes, whole or not at all; False where there is no room, or no process."""
        try:
            os.write(self._input.fileno(), line)
        except OSError:
            return False
        return True

    def _close(self) -> None:
        self._output.close()
        self._input.close()


def memory_bytes(procfs: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory of one process: of half of what the cgroup of the agent may take, an equal part for each.

    So all of them leave the agent its room, which ends with them where the kernel ends a cgroup as a whole.
    """
    own = memory_cgroup(procfs, os.getpid()).lstrip("/")
    try:
        most = int((cgroups / own / "memory.max").read_text())
    except (OSError, ValueError):  # there is no such file, or `max`
        return _LIMITS.memory_bytes
    return min(most // 2 // MOST_AT_ONCE, _LIMITS.memory_bytes)


_MOST_RUNS = 500
"""Of more, the user with most of them loses the oldest."""
_MOST_RECORDS = 32
"""Of one run; a note holds 16 checkpoints."""
_MOST_KEPT_BYTES = 8 << 20
"""Of the file, which is written anew for each verification. Of more, likewise."""
_MOST_BYTES = 32 << 20
_BAD = ("damaged", "incomplete")


class Saved(NamedTuple):
    """A save as the rank noted it."""

    path: str
    step: int
    ended: float
    """Unix time."""


@dataclass(frozen=True)
class VerificationRecord:
    """A verification that is over, or runs."""

    path: str
    step: int
    ended: float
    outcome: str
    finished: float
    """Unix time; 0 as long as it runs."""
    seconds: float
    bytes: int = 0
    file: str = ""
    tensor: str = ""
    damage: str = ""
    private: bool = True
    """The note that named it was hidden from other users: its path and names are for nobody else. Records of
    an agent that did not write it down are taken for such."""
    owner: int | None = None
    """User id of the run's owner; None in records of an agent that did not write it down."""
    tries: int = 1
    """How often it was begun: more than once if the agent ended meanwhile."""

    @property
    def found_bad(self) -> bool:
        """A resume must not take it."""
        return self.outcome in _BAD

    @cached_property
    def size(self) -> int:
        """Bytes that it takes in the file."""
        return len(json.dumps(asdict(self)))

    @property
    def saved(self) -> Saved:
        """The save that was verified."""
        return Saved(self.path, self.step, self.ended)


class VerificationRecords:
    """The records of each run, the newest last, in a file; without one they die with the agent."""

    def __init__(self, directory: Path | None) -> None:
        self._runs: dict[str, list[VerificationRecord]] = {}
        self._file = StateFile(
            directory, "verifications.json", lost="checkpoints are verified again", most_bytes=_MOST_BYTES
        )
        self._file.load(self._load)

    def of_run(self, run: str) -> list[VerificationRecord]:
        """In the order in which they finished."""
        return self._runs.get(run, [])

    def add(self, run: str, record: VerificationRecord) -> None:
        """Take one, and write the file."""
        kept = [each for each in self._runs.pop(run, []) if each.saved != record.saved]
        self._runs[run] = [*kept, record][-_MOST_RECORDS:]
        self._forget(_MOST_RUNS, lambda _: 1)
        self._forget(_MOST_KEPT_BYTES, lambda run: sum(each.size for each in self._runs[run]))
        self._save()

    def forget(self, run: str, saved: Saved) -> None:
        """Drop a record, so that the checkpoint may be verified again, and write the file."""
        kept = [each for each in self._runs.pop(run, []) if each.saved != saved]
        if kept:
            self._runs[run] = kept
        self._save()

    def unfinished(self) -> list[tuple[str, VerificationRecord]]:
        """Those that run, or ran when the agent ended, with their runs."""
        return [(run, each) for run, found in self._runs.items() for each in found if not each.finished]

    def _forget(self, most: int, size: Callable[[str], int]) -> None:
        owners = {each: records[-1].owner for each, records in self._runs.items()}
        for each in excess(owners, owner=owners.__getitem__, most=most, size=size):
            del self._runs[each]

    def _save(self) -> None:
        self._file.save({run: [asdict(each) for each in found] for run, found in self._runs.items()})

    def _load(self, found: Any) -> None:
        self._runs = {str(run): [_record(each) for each in records] for run, records in found.items()}


def newest_of_paths(records: Iterable[VerificationRecord]) -> list[VerificationRecord]:
    """Of each path the newest save, in the order of the saves: a path that was written again holds that."""
    return list({each.path: each for each in sorted(records, key=lambda each: each.ended)}.values())


def _record(found: dict[str, Any]) -> VerificationRecord:
    record = VerificationRecord(**found)
    if not all(isinstance(each, (int, float)) for each in (record.step, record.ended, record.finished)):
        raise ValueError("a record has no step or times")
    return record
