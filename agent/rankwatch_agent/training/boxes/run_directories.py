"""Lists the directories of runs and their black boxes, and counts what is wrong with these.

Other users fill the directories, with whatever and how many they want, so every list is bounded for each
owner and the time for it is shared between them.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from itertools import islice
from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.blackbox.tenants import is_tenant
from rankwatch.conventions.states import BoxFault
from rankwatch.untrusted.folders import Folder
from rankwatch_agent.runtime.collector import Series, sample
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.turns import Turns, share

_MAX_REMEMBERED = 10_000
_log = logging.getLogger(__name__)


class BoxFaults:
    """Counts faults by reason: each box once per reason. The log names each, as far as its limit allows."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self.last: dict[str, float] = {}
        """Unix time of the last one of each reason that occurred."""
        self._wall = wall
        self.by_reason: dict[str, int] = {fault.value: 0 for fault in BoxFault}
        """Every reason is present, because an alert sees only what rises from a first value."""
        self._noted: set[tuple[Path, str]] = set()
        self._log_limit = LogLimit()

    def note(self, path: Path, reason: str, message: str) -> None:
        """Count the fault unless this file had it before."""
        if (path, reason) in self._noted:
            return
        if len(self._noted) >= _MAX_REMEMBERED:
            self._noted.clear()
        self._noted.add((path, reason))
        self.by_reason[reason] = self.by_reason.get(reason, 0) + 1
        self.last[reason] = self._wall()
        # Somebody else chose the bytes of file names: no line break, and nothing that is no text, may pass.
        text = message.encode("unicode_escape").decode("ascii")
        if self._log_limit.allows(text):
            _log.warning("black box left out (%s): %s", reason, text)

    @contextmanager
    def contain(self, path: Path) -> Iterator[None]:
        """Note figures that no trainer has against a box or a run, and lose no other for them."""
        try:
            yield
        except (ArithmeticError, LookupError, ValueError) as error:
            self.note(path, BoxFault.GARBAGE, f"could not use the figures of {path}: {error}")

    def series(self) -> Iterator[Series]:
        """Yield how often each occurred, and when last."""
        for reason, count in self.by_reason.items():
            yield sample("rankwatch_blackbox_faults_total", (reason,), count)
        for reason, wall in self.last.items():
            yield sample("rankwatch_blackbox_last_fault_timestamp_seconds", (reason,), wall)


MAX_RUNS_OF_OWNER = 1024
"""Newest directories of each owner that are looked at."""
MAX_TENANTS = 256
MAX_ENTRIES_OF_RUN = 4096
"""Entries of a run's directory that are looked at."""
MAX_BOXES_OF_RUN = 256
"""Ranks of a run on one node: as many as the largest nodes have cores."""
LIST_SECONDS = 0.2
"""Time for changed directories in one pass; the others wait for the next pass."""
_PAUSE = 10.0
"""After a list of all directories, as a multiple of the time it took."""
_SHORT_SECONDS = 0.02
"""A list that takes less needs no pause."""


@dataclass(eq=False, slots=True)
class RunDirectory:
    path: Path
    owner: int
    """User id."""
    changed: int
    """Its mtime in nanoseconds."""
    boxes: dict[Path, int] = field(default_factory=dict)
    """Box -> user id of its owner."""
    refused: set[Path] = field(default_factory=set)
    """Boxes that cannot be followed as long as the directory stays as it is."""
    ended: bool = False
    """True once all of its boxes were seen to be of ended ranks, until the directory changes."""
    listed: tuple[int, int] = (0, 0)
    """Its mtimes at the last two lists of its boxes."""


class RunDirectories:
    """The directories below one directory, and the boxes in them, or other files with one suffix.

    Those of a tenant lie one level deeper.
    """

    def __init__(
        self,
        directory: Path,
        faults: BoxFaults,
        *,
        suffix: str = layout.SUFFIX,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runs: dict[Path, RunDirectory] = {}
        """The newest first."""
        self._directory = directory
        self._faults = faults
        self._suffix = suffix
        self._monotonic = monotonic
        self._next = float("-inf")

    def update(self) -> None:
        began = self._monotonic()
        if began >= self._next:
            self.runs = {run.path: run for run in self._scan()}
            took = self._monotonic() - began
            self._next = began + _PAUSE * took if took > _SHORT_SECONDS else began
        # Seen twice: a box that comes within the same tick of the clock leaves the mtime as it is.
        changed = [run for run in self.runs.values() if run.listed != (run.changed, run.changed)]
        for run in Turns(changed, owner=lambda run: run.owner, spent=self._monotonic, most=LIST_SECONDS):
            self._list_boxes(run)

    def list_again(self, run: Path) -> None:
        """Have the boxes of a run listed again, although its directory has not changed."""
        if run in self.runs:
            self.runs[run].listed = (0, 0)

    def _scan(self) -> list[RunDirectory]:
        newest: dict[int, list[tuple[int, str]]] = {}
        for changed, path, owner in self._entries():
            of_owner = newest.setdefault(owner, [])
            add = heappush if len(of_owner) < MAX_RUNS_OF_OWNER else heappushpop
            add(of_owner, (changed, path))
        found = sorted(
            ((changed, path, owner) for owner, each in newest.items() for changed, path in each), reverse=True
        )
        return [self._known(Path(path), owner, changed) for changed, path, owner in found]

    def _entries(self) -> Iterator[tuple[int, str, int]]:
        """Yield mtime, path and owner of each directory of a run."""
        self._check()
        tenants = []
        try:
            with Folder.open(self._directory, follow=True) as folder:
                for name, status in _directories_in(folder):
                    if is_tenant(name, status):
                        tenants.append(name)
                    else:
                        yield status.st_mtime_ns, f"{self._directory}/{name}", status.st_uid
        except FileNotFoundError:
            return  # no run yet
        for tenant in tenants[:MAX_TENANTS]:
            yield from self._entries_of(self._directory / tenant)

    def _entries_of(self, tenant: Path) -> Iterator[tuple[int, str, int]]:
        """Yield the same of one tenant. One that cannot be read takes no other away."""
        try:
            with Folder.open(tenant) as folder:
                for name, status in _directories_in(folder):
                    yield status.st_mtime_ns, f"{tenant}/{name}", status.st_uid
        except FileNotFoundError:
            return  # gone meanwhile
        except OSError as error:
            message = f"could not list the tenant's directory {tenant}: {error.strerror}"
            self._faults.note(tenant, BoxFault.UNREADABLE, message)

    def _check(self) -> None:
        """Note it if an ordinary user could exchange what others have in the directory."""
        try:
            with Folder.open(self._directory, follow=True) as folder:
                reason = folder.distrust()
        except OSError:
            return  # it is not there, or a list of it fails with a better reason
        if reason:
            message = f"users can exchange runs of others in {self._directory}: {reason}"
            self._faults.note(self._directory, BoxFault.UNSAFE_DIRECTORY, message)

    def _known(self, path: Path, owner: int, changed: int) -> RunDirectory:
        run = self.runs.get(path)
        if run is None or run.owner != owner:
            return RunDirectory(path, owner, changed)
        run.changed = changed
        return run

    def _list_boxes(self, run: RunDirectory) -> None:
        try:
            files = sorted(_files(run.path, self._suffix))
            found, others = share(files, owner=lambda file: file[1], most=MAX_BOXES_OF_RUN)
        except PermissionError as error:  # of another user: a node without runs would look the same
            message = f"could not list {run.path}: {error.strerror}"
            self._faults.note(run.path, BoxFault.UNREADABLE, message)
            return
        if others:
            message = f"{run.path.name}: only {MAX_BOXES_OF_RUN} ranks of a run are followed"
            self._faults.note(run.path, BoxFault.TOO_MANY_RANKS, message)
        run.boxes = dict(found)
        run.refused.clear()
        run.ended = False
        run.listed = (run.listed[1], run.changed)


def _directories_in(folder: Folder) -> Iterator[tuple[str, os.stat_result]]:
    """Name and status of each directory in a folder; links are none."""
    for name in folder.names():
        try:
            status = folder.status_of(name)
        except FileNotFoundError:
            continue  # gone meanwhile
        if stat.S_ISDIR(status.st_mode):
            yield name, status


def _files(run: Path, suffix: str) -> Iterator[tuple[Path, int]]:
    """Yield the files of a run with this suffix, and their owners.

    Raises PermissionError where we may not read the directory.
    """
    try:
        with Folder.open(run) as folder:
            for name in islice(folder.names(), MAX_ENTRIES_OF_RUN):
                if name.endswith(suffix) and not name.startswith("."):
                    try:
                        yield run / name, folder.status_of(name).st_uid
                    except FileNotFoundError:
                        continue
    except PermissionError:
        raise
    except OSError:
        return  # gone meanwhile, or a link has taken its place
