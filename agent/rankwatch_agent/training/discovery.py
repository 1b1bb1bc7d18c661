"""Finds the black boxes in a directory, and removes those of ranks that ended long ago."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.blackbox.removal import remove_box
from rankwatch.errors import BlackBoxError
from rankwatch.flight_recorder import SUFFIX as SOCKET_SUFFIX
from rankwatch.lifecycle import TERMINATED_SUFFIX
from rankwatch_agent.training.follower import RankFollower

_MAX_REMEMBERED = 10_000


class BoxFaults:
    """Counts what was wrong with black boxes by reason: each box once per reason, and logs each once."""

    def __init__(self) -> None:
        self.by_reason: dict[str, int] = {}
        self._noted: set[tuple[Path, str]] = set()

    def note(self, path: Path, reason: str, message: str) -> None:
        """Count the fault unless this file had it before."""
        if (path, reason) in self._noted:
            return
        if len(self._noted) >= _MAX_REMEMBERED:
            self._noted.clear()
        self._noted.add((path, reason))
        self.by_reason[reason] = self.by_reason.get(reason, 0) + 1
        # Somebody else chose the bytes of file names: no line break, and nothing that is no text, may pass.
        _log.warning("black box left out (%s): %s", reason, message.encode("unicode_escape").decode("ascii"))


_log = logging.getLogger(__name__)


class Discovery:
    """The ranks of this node, each with the follower of its box.

    directory: holds `<run>/<rank>.blackbox`.
    follow: opens a follower for a path; raises BlackBoxError.
    max_runs: runs followed at once; others wait, and are counted as fault `too_many_runs`.
    retention_seconds: how long a rank that ended is kept.
    """

    def __init__(
        self,
        directory: Path,
        follow: Callable[[Path], RankFollower],
        *,
        max_runs: int,
        retention_seconds: float,
    ) -> None:
        self.ranks: dict[Path, RankFollower] = {}
        self.faults = BoxFaults()
        self._directory = directory
        self._follow = follow
        self._max_runs = max_runs
        self._retention_seconds = retention_seconds
        self._seen: dict[Path, tuple[int, int]] = {}  # run's directory -> its mtimes at the last two listings
        self._forgotten: dict[Path, int] = {}  # path -> inode that could not be removed

    def discover(self) -> None:
        """Look for new black boxes."""
        runs = {path.parent for path in self.ranks}
        for run, changed in self._run_directories():
            if run not in runs and len(runs) >= self._max_runs:
                self.faults.note(run, "too_many_runs", f"{run.name}: already following {self._max_runs} runs")
                continue
            before = self._seen.get(run, (0, 0))
            # Seen twice: a box that comes within the same tick of the clock leaves the mtime as it is.
            if before == (changed, changed):
                continue
            try:
                boxes = sorted(_boxes(run))
            except PermissionError as error:  # of another user: a node without runs would look the same
                self.faults.note(run, "unreadable", f"could not list {run}: {error.strerror}")
                continue
            self._seen[run] = (before[1], changed)
            for path in boxes:
                if path not in self.ranks and self._admit(path):
                    runs.add(run)

    def poll(self, moment: float) -> None:
        """Read every box that is followed, and remove what ended too long ago; `moment` is monotonic."""
        for path, rank in list(self.ranks.items()):
            try:
                rank.poll(moment)
            except BlackBoxError as error:
                self.faults.note(path, error.reason, str(error))
                self._drop(path)
            except OSError as error:  # we may not read its directory any more, or its file system is odd
                self.faults.note(path, "unreadable", f"could not follow {path}: {error.strerror}")
                self._drop(path)
        self._forget(moment)

    def _run_directories(self) -> Iterator[tuple[Path, int]]:
        try:
            with os.scandir(self._directory) as entries:
                found = [each for each in entries if each.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return  # no run yet
        runs = []
        for entry in found:
            try:
                runs.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.path))
            except FileNotFoundError:
                continue  # gone meanwhile
        for changed, path in sorted(runs, reverse=True):  # newest first: these are live
            yield Path(path), changed

    def _admit(self, path: Path) -> bool:
        if not path.stem.isdecimal():
            self.faults.note(path, "name", f"{path} is not named after a rank")
            return False
        try:
            if path in self._forgotten and path.stat().st_ino == self._forgotten[path]:
                return False
            self.ranks[path] = self._follow(path)
        except PermissionError as error:
            self.faults.note(path, "unreadable", f"could not open {path}: {error.strerror}")
            return False
        except OSError:
            return False  # gone meanwhile
        except BlackBoxError as error:
            self.faults.note(path, error.reason, str(error))
            return False
        return True

    def _forget(self, moment: float) -> None:
        for path, rank in list(self.ranks.items()):
            if rank.ended_at is None or moment - rank.ended_at < self._retention_seconds:
                continue
            replaced, inode = rank.replaced(), rank.inode
            self._drop(path)
            if not replaced:  # else it is the box of a new process, or a link was put in its way
                self._remove(path, inode)

    def _drop(self, path: Path) -> None:
        self.ranks.pop(path).close()
        self._seen.pop(path.parent, None)

    def _remove(self, path: Path, inode: int) -> None:
        try:
            if not remove_box(path, inode):
                return
            for suffix in (SOCKET_SUFFIX, TERMINATED_SUFFIX):
                path.with_suffix(suffix).unlink(missing_ok=True)
        except FileNotFoundError:
            return  # somebody else removed it
        except OSError as error:
            self._forgotten[path] = inode
            _log.warning("could not remove %s of a run that ended: %s", path, error.strerror)
            return
        with contextlib.suppress(OSError):  # not empty: other ranks, or somebody else's files
            path.parent.rmdir()


def _boxes(run: Path) -> Iterator[Path]:
    """Raises PermissionError where we may not read the directory."""
    try:
        with os.scandir(run) as entries:
            yield from (
                Path(each.path)
                for each in entries
                if each.name.endswith(layout.SUFFIX) and not each.name.startswith(".")
            )
    except PermissionError:
        raise
    except OSError:
        return  # gone meanwhile
