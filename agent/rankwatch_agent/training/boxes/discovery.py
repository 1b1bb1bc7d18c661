"""Chooses which black boxes of this node are followed, and removes those of ranks that ended long ago.

Anybody on the node may make boxes, so places are bounded: for runs, for the ranks of a run, and for boxes,
each of which takes a file descriptor. Where there are too many, the owners take turns. Of one owner living
runs come before ended ones, and newer ones before older ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from typing import NamedTuple

from rankwatch.conventions.states import BoxFault
from rankwatch.errors import BlackBoxError
from rankwatch.sweep import remove_rank
from rankwatch.untrusted.folders import Folder, look
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.turns import Turns, excess, share
from rankwatch_agent.training.boxes.follower import RankFollower
from rankwatch_agent.training.boxes.run_directories import BoxFaults, RunDirectories, RunDirectory

MAX_BOXES = 512
"""Black boxes followed at once: 64 runs of 8 ranks. Each may take 150 KiB of the agent's memory."""
POLL_SECONDS = 0.5
"""Time to read boxes in one pass. What does not fit is read first in the next pass of its owner."""
_MOST_REMEMBERED = 4096
"""Boxes of ended ranks that are not followed, of each kind. Of more, the user with most of them loses the
first: it is followed again once it has a place."""
_log = logging.getLogger(__name__)


class _Ended(NamedTuple):
    """A box of an ended rank that gave up its place, or could not be removed."""

    inode: int
    owner: int
    """User id."""
    ended_at: float
    """Monotonic."""


class Discovery:
    """The ranks of this node, each with the follower of its box.

    directory: holds `<run>/<rank>.blackbox`.
    follow: opens a follower for a path; raises BlackBoxError.
    max_runs: runs followed at once; others wait, and are counted as fault `too_many_runs`.
    max_boxes: likewise boxes; by default as many as the descriptors of this process allow.
    retention_seconds: how long a rank that ended is kept.
    """

    def __init__(
        self,
        directory: Path,
        follow: Callable[[Path], RankFollower],
        *,
        max_runs: int,
        retention_seconds: float,
        max_boxes: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ranks: dict[Path, RankFollower] = {}
        self.faults = BoxFaults()
        self._directories = RunDirectories(directory, self.faults, monotonic=monotonic)
        self._follow = follow
        self._max_runs = max_runs
        self._max_boxes = most_boxes() if max_boxes is None else max_boxes
        self._retention_seconds = retention_seconds
        self._monotonic = monotonic
        self._pass = 0
        self._polled: dict[Path, int] = {}  # path -> number of the pass that read it last
        self._log_limit = LogLimit(monotonic)
        self._ended: dict[Path, _Ended] = {}
        self._forgotten: dict[Path, _Ended] = {}  # boxes that could not be removed

    def read_ranks(self) -> list[RankFollower]:
        """Return the ranks whose boxes have been read."""
        return [rank for path, rank in self.ranks.items() if path in self._polled]

    def discover(self) -> None:
        """Look for new black boxes, and give up those that others displace."""
        self._drop_deleted()
        self._directories.update()
        chosen = self._choose_boxes(self._choose_runs())
        for path in self.ranks.keys() - chosen:
            self._displace(path)
        names = {(rank.run, rank.path.stem) for rank in self.ranks.values()}
        for path in chosen:  # in the order of the choice, so the newest run is opened first
            if path not in self.ranks and not self._admit(path, names):
                self._refuse(path)

    def poll(self, moment: float) -> None:
        """Read the boxes that are followed, as far as their owners' share of the time goes, and remove what
        ended too long ago; `moment` is monotonic."""
        self._pass += 1
        ranks = sorted(self.ranks.values(), key=lambda rank: self._polled.get(rank.path, 0))
        for rank in Turns(ranks, owner=lambda rank: rank.owner, spent=self._monotonic, most=POLL_SECONDS):
            self._polled[rank.path] = self._pass
            self._poll(rank, moment)
        self._note_ended()
        self._forget(moment)

    def _choose_runs(self) -> list[RunDirectory]:
        """Choose at most `max_runs`: of each owner the living ones first, and the newest of these first."""
        runs = [run for run in self._directories.runs.values() if run.boxes.keys() - run.refused]
        runs.sort(key=lambda run: run.ended)  # stable: within both, the newest first
        chosen, others = share(runs, owner=lambda run: run.owner, most=self._max_runs)
        for run in others:
            message = f"{run.path.name}: already following {self._max_runs} runs"
            self.faults.note(run.path, BoxFault.TOO_MANY_RUNS, message)
        return chosen

    def _choose_boxes(self, runs: Iterable[RunDirectory]) -> dict[Path, int]:
        """Choose at most `max_boxes` of these runs, with their owners."""
        wanted = {path: owner for run in runs for path, owner in run.boxes.items() if path not in run.refused}
        for path, rank in self.ranks.items():
            # Deleted while its process lives: the descriptor still reads it.
            gone = path.parent not in self._directories.runs or rank.reader.gone()
            if gone and rank.ended_at is None:
                wanted[path] = rank.owner
        chosen, others = share(wanted.items(), owner=lambda box: box[1], most=self._max_boxes)
        for run in {path.parent: None for path, _ in others}:
            message = f"{run.name}: already following {self._max_boxes} black boxes"
            self.faults.note(run, BoxFault.TOO_MANY_BOXES, message)
        return dict(chosen)

    def _admit(self, path: Path, names: set[tuple[str, str]]) -> bool:
        if not path.stem.isdecimal():
            self.faults.note(path, BoxFault.NAME, f"{path} is not named after a rank")
            return False
        try:
            if path in self._forgotten and look(path).st_ino == self._forgotten[path].inode:
                return False
            rank = self._follow(path)
        except PermissionError as error:
            self.faults.note(path, BoxFault.UNREADABLE, f"could not open {path}: {error.strerror}")
            return False
        except OSError:
            return False  # gone meanwhile
        except BlackBoxError as error:
            self.faults.note(path, error.reason, str(error))
            return False
        if (rank.run, path.stem) in names:
            self.faults.note(path, BoxFault.DUPLICATE, f"{path}: rank {path.stem} of {rank.run} has a box")
            rank.close()
            return False
        if rank.foreign:
            message = f"{path} belongs to user {rank.owner}, its directory to another one: it is {rank.run}"
            self.faults.note(path, BoxFault.FOREIGN_OWNER, message)
        names.add((rank.run, path.stem))
        self._ended.pop(path, None)
        self.ranks[path] = rank
        return True

    def _refuse(self, path: Path) -> None:
        run = self._directories.runs.get(path.parent)
        if run is not None:
            run.refused.add(path)

    def _poll(self, rank: RankFollower, moment: float) -> None:
        path = rank.path
        try:
            rank.poll(moment)
        except BlackBoxError as error:
            self.faults.note(path, error.reason, str(error))
            self._drop(path)
            self._directories.list_again(path.parent)
        except (ArithmeticError, LookupError, ValueError) as error:  # figures that no trainer has
            self.faults.note(path, BoxFault.GARBAGE, f"could not use the figures in {path}: {error}")
            self._drop(path)
            self._refuse(path)
        except OSError as error:  # we may not read its directory any more, or its file system is odd
            self.faults.note(path, BoxFault.UNREADABLE, f"could not follow {path}: {error.strerror}")
            self._drop(path)
            self._directories.list_again(path.parent)

    def _note_ended(self) -> None:
        """Mark the runs whose ranks have all ended: they give way to living ones."""
        living = {path.parent for path, rank in self.ranks.items() if rank.ended_at is None}
        for run in {path.parent for path in self.ranks}:
            if run in self._directories.runs:
                self._directories.runs[run].ended = run not in living

    def _forget(self, moment: float) -> None:
        limit = moment - self._retention_seconds
        for path, rank in list(self.ranks.items()):
            if rank.ended_at is None or rank.ended_at > limit:
                continue
            ended = _Ended(rank.reader.inode, rank.owner, rank.ended_at)
            in_its_path = not (rank.reader.gone() or rank.reader.replaced())
            self._drop(path)
            if in_its_path:  # else it is the box of a new process, or a link was put in its way
                self._remove(path, ended)
            self._directories.list_again(path.parent)
        for path, ended in list(self._ended.items()):
            if ended.ended_at <= limit or path.parent not in self._directories.runs:
                del self._ended[path]
                if path.parent in self._directories.runs:
                    self._remove(path, ended)
        _bound(self._ended)
        _bound(self._forgotten)

    def _drop_deleted(self) -> None:
        """Forget ended ranks whose files somebody has removed: they free their places at once."""
        for path, rank in list(self.ranks.items()):
            if rank.ended_at is not None and rank.reader.gone():
                self._drop(path)

    def _displace(self, path: Path) -> None:
        """Give up a box that others displace; one of an ended rank is still removed in time."""
        rank = self.ranks[path]
        if rank.ended_at is not None:
            self._ended[path] = _Ended(rank.reader.inode, rank.owner, rank.ended_at)
        self._drop(path)

    def _drop(self, path: Path) -> None:
        self.ranks.pop(path).close()
        self._polled.pop(path, None)

    def _remove(self, path: Path, ended: _Ended) -> None:
        run = path.parent
        try:
            with Folder.open(run.parent, follow=True) as boxes, boxes.folder(run.name) as folder:
                remove_rank(boxes, folder, path.stem, ended.inode)
        except FileNotFoundError:
            return  # somebody else removed it
        except OSError as error:
            self._forgotten[path] = ended
            if self._log_limit.allows(str(path)):
                _log.warning("could not remove %s of a run that ended: %s", path, error.strerror)


def _bound(boxes: dict[Path, _Ended]) -> None:
    if len(boxes) > _MOST_REMEMBERED:
        for path in excess(boxes, owner=lambda path: boxes[path].owner, most=_MOST_REMEMBERED):
            del boxes[path]


def most_boxes() -> int:
    """Return half of this process's file descriptors, at most MAX_BOXES: the rest is kept for serving."""
    soft, _ = getrlimit(RLIMIT_NOFILE)
    return MAX_BOXES if soft == RLIM_INFINITY else max(1, min(MAX_BOXES, soft // 2))
