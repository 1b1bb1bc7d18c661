"""Collector `nvrx`: the restart cycles that the launcher of NVIDIA's resiliency extension (NVRx) reports.

`ft_launcher --ft-cycle-info-dir DIR` writes a file for each start of the ranks of a job, and writes it again
when the cycle ends: `cycle_info.<job>.<attempt>.<cycle>`, JSON. Beside it lie `cycle_info.<job>.current`, a
link to the newest one, and for a moment files that end in `.tmp`. The first writing is not atomic, so a file
may be read half. The directory belongs to users, often on a file system that all nodes share.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Container, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rankwatch.untrusted.folders import NotRegularError, open_regular
from rankwatch.untrusted.text import printable
from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.node_events import RestartCycle, RestartCycles
from rankwatch_agent.runtime.source import source
from rankwatch_agent.runtime.turns import Turns
from rankwatch_agent.sources.shared import NodeShared

logger = logging.getLogger(__name__)

REASONS = ("no_file", "too_large", "half_written", "foreign", "unreadable")
MOST_CYCLES = 16
"""Of a job and a user that are read, the newest."""
MOST_ENTRIES = 100_000
"""Of the directory that are looked at in one run."""
_MOST_BYTES = 1 << 20
"""A list of 100,000 nodes by name takes about that."""
_MOST_NODES = 1_000_000
_PASS_SECONDS = 1.0
"""Time to read files that have changed; users take turns for it."""
_NAME = re.compile(r"cycle_info\.(.+)\.(\d{1,9})\.(\d{1,9})")
_ITEM = re.compile(r"(?:[^],[]|\[[\d,-]{1,10000}\])+")
_RANGES = re.compile(r"\[([\d,-]{1,10000})\]")


class _FileKey(NamedTuple):
    """Which file it is, and which state of it."""

    name: str
    inode: int
    size: int
    modified_ns: int


class _File(NamedTuple):
    """A file of a job."""

    job: str
    owner: int
    """User id."""
    key: _FileKey


class _SkipError(Exception):
    def __init__(self, reason: str, why: str) -> None:
        super().__init__(why)
        self.reason = reason


@source(interval_seconds=15.0, deadline_seconds=10.0)  # often on a file system that all nodes share
def nvrx(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    if config.nvrx_directory is not None:
        yield NvrxCollector(directory=config.nvrx_directory, cycles=shared.cycles, schedule=schedule)


class NvrxCollector:
    """Reads the newest cycles of the jobs whose ranks are on this node; a file that has not changed, once.

    cycles: says which jobs are wanted, and takes what was found.
    """

    name = "nvrx"

    def __init__(self, *, directory: Path, cycles: RestartCycles, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._directory = directory
        self._cycles = cycles
        self._skipped = dict.fromkeys(REASONS, 0)
        self._read: dict[_FileKey, RestartCycle | None] = {}
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Raise NotApplicable where the directory is not there yet, CollectError if it cannot be read."""
        try:
            wanted = self._cycles.wanted
            names = self._names({job for job, _ in wanted})
            directory = self._directory.resolve()
        except FileNotFoundError:
            raise NotApplicable(f"{self._directory} is not there yet: no cycle has begun") from None
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
            raise CollectError(f"could not read {self._directory}: {error}") from error
        files = [
            file
            for job, newest_first in names.items()
            for file in _files(directory, job, newest_first, {owner for each, owner in wanted if each == job})
        ]
        known = {file.key: self._read[file.key] for file in files if file.key in self._read}
        changed = [file for file in files if file.key not in known]
        for file in Turns(changed, owner=lambda file: file.owner, spent=time.monotonic, most=_PASS_SECONDS):
            known[file.key] = self._of_file(directory / file.key.name, file)
        self._read = known
        cycles = {job: [known.get(file.key) for file in files if file.job == job] for job in names}
        self._cycles.found = {
            job: tuple(each for each in found if each is not None) for job, found in cycles.items()
        }
        return Collection(
            [
                sample("rankwatch_cycle_files_skipped_total", (reason,), count)
                for reason, count in self._skipped.items()
            ]
        )

    def _names(self, wanted: Container[str]) -> dict[str, list[str]]:
        """Return job -> the names of its cycles, the newest first."""
        found: dict[str, list[tuple[int, int, str]]] = {}
        with os.scandir(self._directory) as entries:
            for _, entry in zip(range(MOST_ENTRIES), entries, strict=False):
                named = _NAME.fullmatch(entry.name)
                if named is not None and named[1] in wanted:
                    found.setdefault(named[1], []).append((int(named[2]), int(named[3]), entry.name))
        return {job: [name for *_, name in sorted(each, reverse=True)] for job, each in found.items()}

    def _of_file(self, path: Path, file: _File) -> RestartCycle | None:
        try:
            return _read_cycle(path, file.job)
        except _SkipError as skip:
            self._skipped[skip.reason] += 1
            if self._log_limit.allows(path.name):
                logger.warning("left out %s: %s", printable(str(path)), skip)
        return None


def _files(directory: Path, job: str, newest_first: Iterable[str], owners: Iterable[int]) -> list[_File]:
    """Return the newest files of a job of each of these users, in their order."""
    room = dict.fromkeys(owners, MOST_CYCLES)
    found: list[_File] = []
    for name in newest_first:
        if not any(room.values()):
            break
        try:
            status = (directory / name).lstat()
        except OSError:
            continue  # it was removed meanwhile
        if room.get(status.st_uid):
            room[status.st_uid] -= 1
            key = _FileKey(name, status.st_ino, status.st_size, status.st_mtime_ns)
            found.append(_File(job, status.st_uid, key))
    return found[::-1]


def _read_cycle(path: Path, job: str) -> RestartCycle:
    """Return the cycle in a file. Raises _SkipError."""
    try:
        file = open_regular(path)
    except NotRegularError as error:
        raise _SkipError("no_file", str(error.strerror)) from error
    except OSError as error:
        raise _SkipError("unreadable", str(error.strerror)) from error
    try:
        status = os.fstat(file)
        if status.st_size > _MOST_BYTES:
            raise _SkipError("too_large", f"it has {status.st_size} bytes")
        raw = os.pread(file, _MOST_BYTES, 0)
    except OSError as error:
        raise _SkipError("unreadable", str(error.strerror)) from error
    finally:
        os.close(file)
    return parse_cycle(raw, path.name, job, status.st_uid)


def parse_cycle(raw: bytes, name: str, job: str, owner: int) -> RestartCycle:
    """Return the cycle by the content of its file. Raises _SkipError if it is cut off, or something else."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        raise _SkipError("half_written", "it is no whole JSON text") from None
    try:
        attempt, number = _count(found["attempt_index"]), _count(found["cycle_number"])
        if f"cycle_info.{found['job_id']}.{attempt}.{number}" != name or found["job_id"] != job:
            raise ValueError("it is of another cycle than its name says")
        started = _time(found["cycle_start_time"])
        ended = _time(found["cycle_end_time"]) if found.get("cycle_end_time") else None
        active = _nodes(found.get("active_nodes") or "")
        standby = _nodes(found.get("standby_nodes") or "")
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise _SkipError("foreign", f"it is no report of a cycle: {error!r}") from None
    after = None if ended is None else max(started, ended)  # a clock may have been set back
    return RestartCycle(attempt, number, started, after, active or None, standby, owner)


def _count(value: Any) -> int:
    """Parse a number: those of 64 bits are texts in the JSON of protocol buffers."""
    if isinstance(value, bool) or not 0 <= int(value) < 10**9:
        raise ValueError(f"{value!r} is no number of a cycle")
    return int(value)


def _time(text: str) -> float:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment.timestamp()


def _nodes(text: str) -> int:
    """Count the nodes that a list in SLURM's form names: `node[1-3,7],login` has five."""
    count = 0
    for item in _ITEM.findall(text):
        nodes = 1
        for ranges in _RANGES.findall(item):
            nodes *= sum(map(_size_of_range, ranges.split(",")))
            if nodes > _MOST_NODES:  # at once: the product of a million ranges takes seconds
                raise ValueError("it names too many nodes")
        count += nodes
        if count > _MOST_NODES:
            raise ValueError("it names too many nodes")
    return count


def _size_of_range(text: str) -> int:
    first, _, last = text.partition("-")
    size = int(last or first) - int(first) + 1
    if size < 1:
        raise ValueError(f"{text!r} is no range of nodes")
    return size
