"""A bundle in the making: what is known of its incident, and what could not be had."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rankwatch import __version__
from rankwatch.conventions.incidents import EvidenceFault, IncidentKind
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.runtime.errors import AgentError
from rankwatch_agent.training.conditions import RankCondition

NAME = "manifest.json"
RANKS_NAME = "ranks.json"
FORMAT = 1


class Missing(NamedTuple):
    """A part that could not be had."""

    what: str
    why: str


def manifest(
    incident: Incident,
    *,
    wall_offset: float,
    node: str,
    files: Sequence[Written],
    missing: Sequence[Missing],
    verdict: Mapping[str, Any] | None,
) -> bytes:
    """The manifest as JSON.

    wall_offset: Unix time less monotonic time, in seconds.
    """
    told = {
        "format": FORMAT,
        "run": incident.run,
        "kind": incident.kind.value,
        "why": why(incident),
        "opened": _rfc3339(incident.opened + wall_offset),
        "opened_timestamp_seconds": round(incident.opened + wall_offset, 3),
        "last_progress": _rfc3339(incident.since + wall_offset),
        "node": node,
        "agent_version": __version__,
        "kernel": " ".join(os.uname()[i] for i in (0, 2, 4)),
        "verdict": verdict,
        "files": [{"path": each.path, "bytes": each.size} for each in files],
        "missing": [{"what": each.what, "why": each.why} for each in missing],
    }
    return _json(told)


def ranks_file(incident: Incident, processes: Mapping[int, int]) -> bytes:
    """What the copy of a black box cannot tell: which moment it is of, and whether its writer lived then.

    Written before the diagnosis, which may read it.
    """
    condition = incident.condition
    ranks = [_rank(each, condition.moment, processes.get(each.rank)) for each in condition.ranks]
    return _json({"run": incident.run, "moment_monotonic_seconds": condition.moment, "ranks": ranks})


def why(incident: Incident) -> str:
    """Why the incident was opened, in one sentence."""
    condition = incident.condition
    if incident.kind is IncidentKind.LOST_RANK:
        lost = ", ".join(str(each.rank) for each in condition.lost)
        return f"the process of rank {lost} is gone and said no goodbye"
    living = [each for each in condition.ranks if not each.ended]
    shortest = min((each.idle_seconds(condition.moment) for each in living), default=0.0)
    longest = max((each.timeout or 0.0 for each in living), default=0.0)
    return (
        f"none of the {len(living)} living ranks made progress for {shortest:.1f} s or longer; "
        f"by their own history {longest:.1f} s at most are normal"
    )


def _rank(rank: RankCondition, moment: float, process: int | None) -> dict[str, Any]:
    phase = rank.open_phase
    return {
        "rank": rank.rank,
        "state": rank.state.value,
        "pid": rank.pid,
        "pid_on_node": process,
        "seconds_without_progress": None if rank.ended else round(rank.idle_seconds(moment), 3),
        "timeout_seconds": rank.timeout,
        "open_phase": None if phase is None else phase[0],
        "seconds_in_phase": None if phase is None else round(max(0.0, moment - phase[1]), 3),
    }


def _json(told: Mapping[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n"


def _rfc3339(wall: float) -> str:
    milliseconds = int(wall % 1 * 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(wall))}.{milliseconds:03d}Z"


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class EvidenceError(AgentError):
    """A part of a bundle, or the whole, could not be had; `fault` is the reason that is counted."""

    def __init__(self, fault: EvidenceFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


def write_error(what: str, error: OSError) -> EvidenceError:
    """Could not write; a full file system is told apart."""
    fault = EvidenceFault.NO_SPACE if error.errno in _FULL else EvidenceFault.WRITE
    return EvidenceError(fault, f"could not write {what}: {error.strerror or error}")


FREE_BYTES = 1 << 30
"""Left free on the file system, whatever is written: it may be that of the node's other services."""
FREE_SHARE = 0.05
"""Likewise, of the size of the file system; the smaller of the two counts."""
CHUNK_BYTES = 1 << 20
"""Read and written at once."""
RESERVED_BYTES = 8 << 20
"""Kept for the verdict and the manifest, which come last; a quarter of the bundle where that is less."""
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Written(NamedTuple):
    """A file of the bundle."""

    path: str
    """Below the bundle."""
    size: int


class BundleFolder:
    """The directory of a bundle, which exists and belongs to us alone.

    most_bytes: of all its files together.
    ends: monotonic moment in seconds past which nothing is written: a slow disk holds nobody for long.
    """

    def __init__(
        self,
        path: Path,
        *,
        most_bytes: int,
        ends: float = float("inf"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.files: list[Written] = []
        self._reserved = min(RESERVED_BYTES, most_bytes // 4)
        self._left = most_bytes - self._reserved
        self._ends = ends
        self._monotonic = monotonic

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write a file; what does not fit leaves no file.

        Raises EvidenceError where it does not fit, the disk is full or cannot be written, and whatever
        `chunks` raises.
        """
        target = self.path / name
        written = 0
        try:
            for parent in [*target.relative_to(self.path).parents][-2::-1]:
                (self.path / parent).mkdir(mode=0o700, exist_ok=True)
            file = os.open(target, _NEW_FILE, 0o600)
        except OSError as error:
            raise write_error(name, error) from None
        complete = False
        try:
            for chunk in chunks:
                written += self._append(file, name, chunk)
            complete = True
        except OSError as error:
            raise write_error(name, error) from None
        finally:
            os.close(file)
            if complete:
                self.files.append(Written(name, written))
            else:
                target.unlink(missing_ok=True)
                self._left += written

    @property
    def left_bytes(self) -> int:
        """Bytes that may still be written, the reserve among them."""
        return self._left + self._reserved

    def use_reserve(self) -> None:
        """From now on the last part of the bundle's bytes may be written too."""
        self._left, self._reserved = self._left + self._reserved, 0

    def _append(self, file: int, name: str, chunk: bytes) -> int:
        size = len(chunk)
        if self._monotonic() > self._ends:
            raise EvidenceError(EvidenceFault.WRITE, f"could not write {name}: the time was over")
        if size > self._left:
            raise EvidenceError(EvidenceFault.SIZE, f"{name} would make the bundle too large")
        if size > _spare_bytes(file):
            raise EvidenceError(EvidenceFault.NO_SPACE, f"could not write {name}: too little space is free")
        view = memoryview(chunk)
        while view:
            view = view[os.write(file, view) :]
        self._left -= size
        return size


def _spare_bytes(file: int) -> float:
    """Bytes that may still be written to the file system."""
    status = os.fstatvfs(file)
    kept = min(FREE_BYTES, FREE_SHARE * status.f_blocks * status.f_frsize)
    return status.f_bavail * status.f_frsize - kept


MOST_RANKS = 64
"""Ranks of a bundle: more than any node has GPUs."""


class Draft:
    """What the steps of a bundle share."""

    def __init__(self, incident: Incident, folder: BundleFolder) -> None:
        self.incident = incident
        self.folder = folder
        self.missing: list[Missing] = []
        self.faults: Counter[EvidenceFault] = Counter()
        self.processes: dict[int, int] = {}
        """Rank -> process id, in the agent's own numbering."""
        left_out = len(incident.condition.ranks) - MOST_RANKS
        if left_out > 0:
            self.lacks(f"{left_out} ranks", f"a bundle holds {MOST_RANKS}")

    @property
    def ranks(self) -> tuple[RankCondition, ...]:
        """The ranks to look at."""
        return self.incident.condition.ranks[:MOST_RANKS]

    def lacks(self, what: str, why: str) -> None:
        """Say that a part is missing, and that this is no fault."""
        self.missing.append(Missing(what, why))

    def fails(self, what: str, error: EvidenceError) -> None:
        """Say that a part is missing because something went wrong."""
        self.faults[error.fault] += 1
        self.lacks(what, str(error))

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """What raises EvidenceError inside the block is missing, and counted."""
        try:
            yield
        except EvidenceError as error:
            self.fails(what, error)
