"""Adds to a bundle what appears only after its incident began: dumps of PyTorch's watchdog, and traces.

The watchdog writes its flight-recorder dumps when it gives up, minutes after the incident began. Dumps that
appear while the incident is open are added to its bundle.

Ranks that an incident names are asked for traces of their slowest later steps. A rank answers if its run was
started with `rankwatch run --profile-on-slow N`. Its traces appear beside its black box once the run goes on,
some steps after the incident."""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rankwatch import profiling, variables
from rankwatch.conventions.states import EvidenceFault
from rankwatch_agent.incidents.bundle import Bundle, BundleFolder, EvidenceError, copy_file
from rankwatch_agent.incidents.episodes import Incident, RootCause
from rankwatch_agent.training.conditions import RankCondition

logger = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
"""Time between two looks at the directory of dumps."""
MAX_ENTRIES = 4096
"""Entries looked at in the directory, which may be /tmp."""
MAX_DUMPS = 128
"""Dumps tried for one bundle."""
MAX_DUMP_BYTES = 64 << 20
PROFILE_CHECK_SECONDS = 10.0
WATCH_SECONDS = 1800.0
"""Time after an incident in which traces of its ranks are added."""
MOST_RANKS = 4
"""Ranks asked for one incident."""
MOST_TRACES = variables.MOST_PROFILES * profiling.MOST_REQUESTS
"""Of one rank in a bundle."""
_OF_TRACE: Mapping[str, Any] = MappingProxyType(
    {"fault": EvidenceFault.PROFILE, "max_bytes": profiling.MOST_BYTES}
)
_RANK = re.compile(r"[A-Za-z0-9._+=@:-]*?(\d{1,7})")


class _OpenBundle(NamedTuple):
    """A bundle that dumps may be added to."""

    folder: BundleFolder
    tried: set[str]


class DumpWatcher:
    """Looks for dumps while incidents are open, which is at least a minute.

    directory: the directory of TORCH_FR_DUMP_TEMP_FILE. Any file name that ends in a rank may be a dump.
    """

    def __init__(
        self,
        directory: Path,
        *,
        check_seconds: float = CHECK_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._check_seconds = check_seconds
        self._monotonic = monotonic
        self._checked_at = float("-inf")
        self._files: dict[str, tuple[int, int]] = {}
        """Name -> modification time in Unix nanoseconds, and size, at the last look."""
        self._bundles: dict[int, _OpenBundle] = {}

    def watch(self, incident: Incident, bundle: Path, free_bytes: int) -> None:
        """Add dumps to this bundle from now on, at most `free_bytes`."""
        folder = BundleFolder(bundle, max_bytes=free_bytes)
        folder.use_reserve()
        self._bundles[incident.number] = _OpenBundle(folder, set())

    def collect(self, incidents: Iterable[Incident], wall_offset: float) -> Counter[EvidenceFault]:
        """Add new dumps to the bundles of open incidents. Returns what failed, by reason.

        wall_offset: Unix time less monotonic time, in seconds.
        """
        faults: Counter[EvidenceFault] = Counter()
        now = self._monotonic()
        open_now = {incident.number: incident for incident in incidents}
        self._bundles = {number: each for number, each in self._bundles.items() if number in open_now}
        if not self._bundles or now - self._checked_at < self._check_seconds:
            return faults
        self._checked_at = now
        try:
            finished = self._finished_dumps()
        except EvidenceError as error:
            return Counter([error.fault])
        for number, bundle in self._bundles.items():
            incident = open_now[number]
            for name, modified_ns in finished:
                if belongs(name, modified_ns / 1e9, incident, incident.since + wall_offset):
                    faults.update(self._add(name, bundle, incident.condition.ranks[0].owner))
        return faults

    def _add(self, name: str, bundle: _OpenBundle, owner: int) -> list[EvidenceFault]:
        """Copy a dump into its bundle, unless it was tried or MAX_DUMPS were; return the faults.

        owner: user id of the run. In /tmp anybody can write dumps for the ranks of others.
        """
        if name in bundle.tried or len(bundle.tried) >= MAX_DUMPS:
            return []
        bundle.tried.add(name)
        source, fault = self._directory.resolve() / name, EvidenceFault.DUMP
        return try_copy(
            source, bundle.folder, f"dumps/{name}", owner=owner, fault=fault, max_bytes=MAX_DUMP_BYTES
        )

    def _finished_dumps(self) -> list[tuple[str, int]]:
        """Return name and modification time (Unix nanoseconds) of dumps that did not change since the last
        look.

        Raises EvidenceError where the directory cannot be read.
        """
        before, self._files = self._files, {}
        try:
            with os.scandir(self._directory) as entries:
                for entry in islice(entries, MAX_ENTRIES):
                    if _RANK.fullmatch(entry.name) is None:
                        continue
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        self._files[entry.name] = (status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            return []  # no dump yet
        except OSError as error:
            message = f"could not list {self._directory}: {error.strerror}"
            raise EvidenceError(EvidenceFault.DUMP, message) from None
        return [(name, state[0]) for name, state in self._files.items() if before.get(name) == state]


def belongs(name: str, modified: float, incident: Incident, since: float) -> bool:
    """Return True for a dump of a local rank of the incident's run that is not older than `since` (Unix
    time).

    A dump does not name its run. Where two runs stall at once, each gets it.
    """
    match = _RANK.fullmatch(name)
    ranks = {each.rank for each in incident.condition.ranks}
    return match is not None and modified >= since and int(match[1]) in ranks


def add_profiles(bundle: Bundle) -> None:
    """Copy the traces that are there already, which somebody has asked for before."""
    for rank in bundle.ranks:
        for source in profiling.traces_beside(rank.path)[-MOST_TRACES:]:
            bundle.copy(source, f"profiles/{source.name}", owner=rank.owner, **_OF_TRACE)


class _Watched(NamedTuple):
    """A bundle that waits for traces."""

    folder: BundleFolder
    boxes: Mapping[Path, int]
    """Black box -> user id of its owner."""
    until: float
    tried: set[Path]
    """Traces that were copied, are not to be, or could not be."""


class ProfileWatcher:
    """Asks for traces when a bundle is complete, and adds them for half an hour."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._checked_at = float("-inf")
        self._watched: list[_Watched] = []

    def ask(
        self, incident: Incident, named: Sequence[RootCause], bundle: Path, free_bytes: int
    ) -> Counter[EvidenceFault]:
        """Leave requests for the named ranks of this node that live. Returns what failed, by reason."""
        faults: Counter[EvidenceFault] = Counter()
        wanted = {each.rank for each in named}
        asked = [each for each in incident.condition.ranks if each.rank in wanted and not each.ended]
        boxes = {}
        for rank in asked[:MOST_RANKS]:
            try:
                ask_rank(rank)
                boxes[rank.path] = rank.owner
            except OSError as error:
                logger.info("could not ask rank %d for traces: %s", rank.rank, error.strerror)
                faults[EvidenceFault.PROFILE] += 1
        if boxes:
            folder = BundleFolder(bundle, max_bytes=free_bytes)
            folder.use_reserve()
            there = {each for box in boxes for each in profiling.traces_beside(box)}
            self._watched.append(_Watched(folder, boxes, self._monotonic() + WATCH_SECONDS, there))
        return faults

    def collect(self) -> Counter[EvidenceFault]:
        """Add new traces to their bundles. Returns what failed, by reason."""
        faults: Counter[EvidenceFault] = Counter()
        now = self._monotonic()
        self._watched = [each for each in self._watched if each.until > now and each.folder.path.is_dir()]
        if not self._watched or now - self._checked_at < PROFILE_CHECK_SECONDS:
            return faults
        self._checked_at = now
        for watched in self._watched:
            for box, owner in watched.boxes.items():
                for source in profiling.traces_beside(box)[:MOST_TRACES]:
                    if source not in watched.tried:
                        watched.tried.add(source)
                        name = f"profiles/{source.name}"
                        faults.update(try_copy(source, watched.folder, name, owner=owner, **_OF_TRACE))
        return faults


def ask_rank(rank: RankCondition) -> None:
    """Leave a request for traces. Raises OSError."""
    folder = rank.path.parent
    profiling.request(folder.parent, folder.name, rank.rank)


def try_copy(source: Path, folder: BundleFolder, name: str, **of: Any) -> list[EvidenceFault]:
    """Copy a file as `copy_file` does. Returns what failed, if anything did."""
    try:
        copy_file(source, folder, name, **of)
    except EvidenceError as error:
        return [error.fault]
    return []
