"""A bundle of evidence while it is written: its folder, what it lacks, its manifest, copies of untrusted
files.

The files belong to the owner only. They stay within a size limit and leave the disk usable. A part that fails
costs only itself; the manifest lists it. Sources lie in directories that others can write to: a copy follows
no link and does not block.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rankwatch import __version__
from rankwatch.conventions.states import EvidenceFault, IncidentKind
from rankwatch.untrusted.folders import Folder, open_regular
from rankwatch.untrusted.text import shown_json
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.runtime.errors import AgentError
from rankwatch_agent.runtime.logs import rfc3339
from rankwatch_agent.sources.rank_process import ProcessFacts
from rankwatch_agent.training.conditions import RankCondition

MANIFEST_NAME = "manifest.json"
RANKS_NAME = "ranks.json"
FORMAT = 1
MAX_RANKS = 64
"""Ranks in a bundle. No node has as many GPUs."""
MIN_FREE_BYTES = 1 << 30
"""Always left free on the file system, which other services of the node may share."""
MIN_FREE_SHARE = 0.05
"""Likewise, as a share of the file system. The smaller of the two applies."""
CHUNK_BYTES = 1 << 20
"""Read and written at once."""
RESERVED_BYTES = 8 << 20
"""Reserved for the verdict and the manifest, which come last; at most a quarter of the bundle."""
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class EvidenceError(AgentError):
    """A part of a bundle, or the whole bundle, is missing. `fault` is the reason that is counted."""

    def __init__(self, fault: EvidenceFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


def write_error(what: str, error: OSError) -> EvidenceError:
    """Return the error for a failed write, with a fault of its own for a full file system."""
    fault = EvidenceFault.NO_SPACE if error.errno in _DISK_FULL else EvidenceFault.WRITE
    return EvidenceError(fault, f"could not write {what}: {error.strerror or error}")


class BundleFile(NamedTuple):
    path: str
    """Below the bundle."""
    size: int


class BundleFolder:
    """The directory of a bundle, which exists and belongs to the agent alone.

    max_bytes: of all files together. ends: monotonic moment in seconds after which nothing is written, so
    that a slow disk does not hold the agent.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        ends: float = float("inf"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.files: list[BundleFile] = []
        self._reserved = min(RESERVED_BYTES, max_bytes // 4)
        self._left = max_bytes - self._reserved
        self._ends = ends
        self._monotonic = monotonic

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write a file completely or not at all.

        Raises EvidenceError where it does not fit or the disk fails, and whatever `chunks` raises.
        """
        target = self.path / name
        written = 0
        try:
            for parent in [*target.relative_to(self.path).parents][-2::-1]:
                (self.path / parent).mkdir(mode=0o700, exist_ok=True)
            with Folder.open(target.parent) as folder:
                file = folder.create(target.name, mode=0o600)
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
                self.files.append(BundleFile(name, written))
            else:
                target.unlink(missing_ok=True)
                self._left += written

    @property
    def free_bytes(self) -> int:
        """Bytes that may still be written, including the reserve."""
        return self._left + self._reserved

    def use_reserve(self) -> None:
        """Release the reserved bytes for the files that follow."""
        self._left, self._reserved = self._left + self._reserved, 0

    def _append(self, file: int, name: str, chunk: bytes) -> int:
        size = len(chunk)
        if self._monotonic() > self._ends:
            raise EvidenceError(EvidenceFault.WRITE, f"could not write {name}: it took too long")
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
    """Return how many bytes may still be written to the file system."""
    status = os.fstatvfs(file)
    kept = min(MIN_FREE_BYTES, MIN_FREE_SHARE * status.f_blocks * status.f_frsize)
    return status.f_bavail * status.f_frsize - kept


class Missing(NamedTuple):
    """A part that the bundle lacks."""

    what: str
    why: str


class Bundle:
    """What the steps that write a bundle share."""

    def __init__(self, incident: Incident, folder: BundleFolder) -> None:
        self.incident = incident
        self.folder = folder
        self.missing: list[Missing] = []
        self.faults: Counter[EvidenceFault] = Counter()
        self.processes: dict[int, int] = {}
        """Rank -> process id, in the agent's PID namespace."""
        self.facts: dict[int, ProcessFacts] = {}
        """Rank -> what the kernel shows of that process."""
        self.silent: set[int] = set()
        """Ranks whose flight recorder took the question and gave no answer in time."""
        left_out = len(incident.condition.ranks) - MAX_RANKS
        if left_out > 0:
            self.add_missing(f"{left_out} ranks", f"a bundle holds {MAX_RANKS}")

    @property
    def ranks(self) -> tuple[RankCondition, ...]:
        """The ranks to collect evidence of."""
        return self.incident.condition.ranks[:MAX_RANKS]

    def add_missing(self, what: str, why: str) -> None:
        """Record that a part is missing without a fault."""
        self.missing.append(Missing(what, why))

    def add_fault(self, what: str, error: EvidenceError) -> None:
        """Record that a part is missing because of a fault."""
        self.faults[error.fault] += 1
        self.add_missing(what, str(error))

    @contextmanager
    def part(self, what: str) -> Iterator[str]:
        """Record an EvidenceError inside the block as a fault of this part, which it gives back."""
        try:
            yield what
        except EvidenceError as error:
            self.add_fault(what, error)

    def copy(self, source: Path, name: str, *, owner: int, fault: EvidenceFault, max_bytes: int) -> None:
        """Copy a file of this user as a part, by `copy_file`."""
        with self.part(name):
            copy_file(source, self.folder, name, owner=owner, fault=fault, max_bytes=max_bytes)


def manifest(bundle: Bundle, *, wall_offset: float, node: str, verdict: Mapping[str, Any] | None) -> bytes:
    """Return the manifest as JSON: what happened and when, the files, and what the bundle lacks.

    wall_offset: Unix time less monotonic time, in seconds.
    """
    incident = bundle.incident
    return _json(
        {
            "format": FORMAT,
            "run": incident.run,
            "owner": incident.owner,
            "kind": incident.kind.value,
            "why": why(incident),
            "opened": rfc3339(incident.opened + wall_offset),
            "opened_timestamp_seconds": round(incident.opened + wall_offset, 3),
            "last_progress": rfc3339(incident.since + wall_offset),
            "node": node,
            "agent_version": __version__,
            "kernel": " ".join(os.uname()[i] for i in (0, 2, 4)),
            "verdict": verdict,
            "files": [{"path": each.path, "bytes": each.size} for each in bundle.folder.files],
            "missing": [{"what": each.what, "why": each.why} for each in bundle.missing],
        }
    )


def ranks_file(bundle: Bundle) -> bytes:
    """Return what the copy of a black box does not show: its moment, and whether its writer was alive.

    The diagnosis reads it.
    """
    condition = bundle.incident.condition
    ranks = [
        _rank(each, condition.moment, bundle.processes.get(each.rank)) | _process(bundle, each.rank)
        for each in condition.ranks
    ]
    return _json({"run": bundle.incident.run, "moment_monotonic_seconds": condition.moment, "ranks": ranks})


def why(incident: Incident) -> str:
    """Return why the incident was opened, in one sentence."""
    condition = incident.condition
    if incident.kind is IncidentKind.LOST_RANK:
        lost = ", ".join(str(each.rank) for each in condition.lost)
        return f"the process of rank {lost} is gone without an end record"
    living = [each for each in condition.ranks if not each.ended]
    shortest = min((each.idle_seconds(condition.moment) for each in living), default=0.0)
    longest = max((each.timeout or 0.0 for each in living), default=0.0)
    if len(living) == 1:
        return (
            f"rank {living[0].rank} made no progress for {shortest:.1f} s; "
            f"by its own history at most {longest:.1f} s are normal"
        )
    return (
        f"none of the {len(living)} living ranks made progress for {shortest:.1f} s or longer; "
        f"by their own history at most {longest:.1f} s are normal"
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


def _process(bundle: Bundle, rank: int) -> dict[str, Any]:
    facts = bundle.facts.get(rank)
    return {
        "process": None if facts is None else facts.as_json(),
        "flight_recorder_silent": rank in bundle.silent,
    }


def _json(content: Mapping[str, Any]) -> bytes:
    return shown_json(msgspec.json.format(msgspec.json.encode(content).decode(), indent=2) + "\n").encode()


def copy_file(
    source: Path,
    folder: BundleFolder,
    name: str,
    *,
    owner: int,
    fault: EvidenceFault,
    max_bytes: int,
) -> None:
    """Copy a regular file in its present size; what a living writer appends meanwhile is left out.

    owner: user id that it must have. Neither the file nor its directory may be a link. Raises EvidenceError,
    with `fault` for a bad source.
    """
    with open_untrusted(source, owner, fault) as file:
        size = os.fstat(file).st_size
        if size > max_bytes:
            raise EvidenceError(fault, f"{source} has {size} bytes, more than {max_bytes}")
        folder.write(name, _chunks(file, size, source, fault))


@contextmanager
def open_untrusted(source: Path, owner: int, fault: EvidenceFault) -> Iterator[int]:
    """Open a regular file of this user. Neither it nor its directory may be a link. Raises EvidenceError."""
    try:
        file = open_regular(source, owner=owner)
    except OSError as error:
        raise EvidenceError(fault, f"could not open {source}: {error.strerror}") from None
    try:
        yield file
    finally:
        os.close(file)


def _chunks(file: int, size: int, source: Path, fault: EvidenceFault) -> Iterator[bytes]:
    left = size
    while left > 0:
        try:
            chunk = os.read(file, min(left, CHUNK_BYTES))
        except OSError as error:
            raise EvidenceError(fault, f"could not read {source}: {error.strerror}") from None
        if not chunk:
            return  # it has become shorter
        left -= len(chunk)
        yield chunk
