"""Adds the dumps that PyTorch's watchdog writes to the bundle of the incident that they are of."""

from __future__ import annotations

import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.incidents import EvidenceFault
from rankwatch_agent.incidents.bundle import BundleFolder, EvidenceError
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.incidents.untrusted_copy import copy_file

MOST_ENTRIES = 4096
"""Of the directory, which may be /tmp, that are looked at."""
MOST_DUMP_BYTES = 64 << 20
_RANK = re.compile(r"[A-Za-z0-9._+=@:-]*?(\d{1,7})")


class _Seen(NamedTuple):
    """A file as it was at the last look; a dump is taken once two looks agree."""

    modified_ns: int
    size: int


class DumpDirectory:
    """Watches a directory of dumps, named after TORCH_FR_DUMP_TEMP_FILE: anything that ends in the rank.

    directory: the one that TORCH_FR_DUMP_TEMP_FILE lies in.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[str, _Seen] = {}

    def look(self) -> list[tuple[str, int]]:
        """Name and modification time (Unix nanoseconds) of the dumps that do not grow any more.

        Raises EvidenceError where the directory cannot be read.
        """
        found = dict(self._files())
        ready = [(name, seen.modified_ns) for name, seen in found.items() if self._seen.get(name) == seen]
        self._seen = found
        return ready

    def copy(self, name: str, folder: BundleFolder) -> None:
        """Add a dump to a bundle; raises EvidenceError."""
        source = self._directory.resolve() / name
        copy_file(source, folder, f"dumps/{name}", fault=EvidenceFault.DUMP, most_bytes=MOST_DUMP_BYTES)

    def _files(self) -> Iterator[tuple[str, _Seen]]:
        try:
            with os.scandir(self._directory) as entries:
                for _, entry in zip(range(MOST_ENTRIES), entries, strict=False):
                    if _RANK.fullmatch(entry.name) is None:
                        continue
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield entry.name, _Seen(status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            return  # no dump yet
        except OSError as error:
            why = f"could not list {self._directory}: {error.strerror}"
            raise EvidenceError(EvidenceFault.DUMP, why) from None


def belongs(name: str, modified: float, incident: Incident, since: float) -> bool:
    """Whether a dump is of a local rank of the incident's run, and not older than `since` (Unix time).

    A dump does not name its run: where two runs stand at once, each gets it.
    """
    match = _RANK.fullmatch(name)
    ranks = {each.rank for each in incident.condition.ranks}
    return match is not None and modified >= since and int(match[1]) in ranks


LOOK_SECONDS = 5.0
"""Between two looks at the directory of dumps."""
MOST_DUMPS = 128
"""Tried for one bundle."""


class _Open(NamedTuple):
    """A bundle that dumps may be added to."""

    folder: BundleFolder
    tried: set[str]


class AddedDumps:
    """Looks while incidents are open: each is for a minute at least, also where its run ends at once."""

    def __init__(
        self,
        directory: Path,
        *,
        look_seconds: float = LOOK_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = DumpDirectory(directory)
        self._look_seconds = look_seconds
        self._monotonic = monotonic
        self._looked = float("-inf")
        self._bundles: dict[int, _Open] = {}

    def expect(self, incident: Incident, bundle: Path, left_bytes: int) -> None:
        """From now on add dumps to this bundle, at most `left_bytes`."""
        folder = BundleFolder(bundle, most_bytes=left_bytes)
        folder.use_reserve()
        self._bundles[incident.number] = _Open(folder, set())

    def add(self, incidents: Iterable[Incident], wall_offset: float) -> Counter[EvidenceFault]:
        """Add what has come for the incidents that are open; what could not be added, counted.

        wall_offset: Unix time less monotonic time, in seconds.
        """
        faults: Counter[EvidenceFault] = Counter()
        now = self._monotonic()
        open_now = {incident.number: incident for incident in incidents}
        self._bundles = {number: each for number, each in self._bundles.items() if number in open_now}
        if not self._bundles or now - self._looked < self._look_seconds:
            return faults
        self._looked = now
        try:
            ready = self._directory.look()
        except EvidenceError as error:
            return Counter([error.fault])
        for number, bundle in self._bundles.items():
            incident = open_now[number]
            for name, modified_ns in ready:
                if belongs(name, modified_ns / 1e9, incident, incident.since + wall_offset):
                    faults.update(self._add(name, bundle))
        return faults

    def _add(self, name: str, bundle: _Open) -> list[EvidenceFault]:
        if name in bundle.tried or len(bundle.tried) >= MOST_DUMPS:
            return []
        bundle.tried.add(name)
        try:
            self._directory.copy(name, bundle.folder)
        except EvidenceError as error:
            return [error.fault]
        return []
