"""Who writes a black box: the process, which the kernel knows by its lock, and the user."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rankwatch.untrusted.children import Owner, owner_of
from rankwatch.untrusted.chosen_paths import SECONDS, Answer, PathReader, Wanted
from rankwatch.untrusted.folders import open_regular
from rankwatch.untrusted.peers import lock_holder
from rankwatch_agent.runtime.logs import LogLimit

logger = logging.getLogger(__name__)


class RankProcess(NamedTuple):
    """The process of a rank that lives on this node."""

    run: str
    rank: int
    pid: int
    """In the agent's PID namespace."""
    owner: int = 0
    """User id."""


def writer_of(black_box: Path) -> int | None:
    """Return the process that writes a black box; None where it is unknown.

    The header holds the id that the trainer sees, which differs in a container, and the file is untrusted.
    But the writer holds a record lock on the file, and the kernel knows the holder. A process that shares its
    descriptors may outlive it, so that another one has its number by now: the user must fit.
    """
    try:
        file = open_regular(black_box)
    except OSError:
        return None
    try:
        pid = lock_holder(file)
        return pid if pid and _user_of(pid) == os.fstat(file).st_uid else None
    except (OSError, ValueError):
        return None  # a file system without locks, or the process has ended
    finally:
        os.close(file)


def _user_of(pid: int) -> int:
    """Return the real user id of a process. Raises OSError and ValueError."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    found = next((line for line in status.splitlines() if line.startswith("Uid:")), "")
    return int(found.split("\t")[1] if "\t" in found else "")


def user_of(black_box: Path, owner: int) -> Owner:
    """Return the user of a black box, with groups, for children that read what is theirs. Raises OSError."""
    file = open_regular(black_box, owner=owner)
    try:
        return owner_of(owner, lock_holder(file) or None)
    finally:
        os.close(file)


class PathReaders:
    """Reads files at paths that the users of black boxes chose, each with the rights of its user."""

    def __init__(self) -> None:
        self._readers: dict[int, PathReader] = {}
        """By user id."""
        self._log_limit = LogLimit()

    def find(self, box: Path, owner: int, wanted: Sequence[Wanted]) -> Sequence[Answer] | None:
        """Return the answers; None while one of them is not known."""
        reader = self._readers.get(owner)
        if reader is None:
            try:
                reader = self._readers[owner] = PathReader(user_of(box, owner))
            except OSError:  # the box is gone
                return [None] * len(wanted)
        return reader.find(wanted)

    def advance(self) -> None:
        """Take what was read, and have the next files read."""
        for owner, reader in list(self._readers.items()):
            before = reader.given_up
            reader.advance()
            if reader.given_up > before and self._log_limit.allows(str(owner)):
                logger.warning("a file of user %d could not be read within %g s", owner, SECONDS)
            if reader.idle:
                del self._readers[owner]

    def close(self) -> None:
        """End all reading."""
        for reader in self._readers.values():
            reader.close()
