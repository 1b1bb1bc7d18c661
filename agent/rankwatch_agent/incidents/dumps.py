"""Flight-recorder files that PyTorch writes itself, when its watchdog gives up: minutes after the incident
began. Those that appear while it is open are added to its bundle.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.incidents import EvidenceFault
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.incidents.error import EvidenceError
from rankwatch_agent.incidents.folder import BundleFolder
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
