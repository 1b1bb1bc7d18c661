"""The runs whose rank 0 is on this node and uses an experiment tracker, and their figures for it.

What rank 0 wrote about its trackers is untrusted, like its black box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from rankwatch.conventions.vocabulary import COMMUNICATION, DATA_WAIT
from rankwatch.trackers.finding import MOST_BYTES, SUFFIX, Tracker, parse_note
from rankwatch.untrusted.folders import look, read_owned
from rankwatch.untrusted.text import is_hidden
from rankwatch_agent.training.boxes.follower import RankFollower
from rankwatch_agent.training.boxes.run_directories import BoxFaults


class Figures(NamedTuple):
    """What rank 0 has done while the agent watched."""

    moment: float
    """Monotonic."""
    running_seconds: float
    """Since the start of the first process of the run that the agent saw."""
    last_step: int
    steps: int
    seconds: float
    """Of these steps."""
    data_wait_seconds: float
    communication_seconds: float
    late_steps: int

    @property
    def goodput(self) -> float | None:
        """Part of the time that was spent in completed steps; None before the first one."""
        if not self.steps or self.running_seconds <= 0.0:
            return None
        return min(1.0, self.seconds / self.running_seconds)


class TrackedRun(NamedTuple):
    """A run with a tracker."""

    run: str
    owner: int
    """User id."""
    trackers: tuple[Tracker, ...]
    figures: Figures


class _Note(NamedTuple):
    changed: tuple[int, int]
    """Inode and ctime."""
    trackers: tuple[Tracker, ...]


class TrackedRuns:
    """The newest state of each, replaced as a whole: one thread updates it, any thread reads."""

    def __init__(self) -> None:
        self._runs: Mapping[str, TrackedRun] = MappingProxyType({})
        self._notes: dict[Path, _Note] = {}
        self._began: dict[str, float] = {}

    @property
    def runs(self) -> Mapping[str, TrackedRun]:
        """By name."""
        return self._runs

    def url(self, run: str) -> str:
        """Return the page of the run in its tracker; empty where there is none."""
        tracked = self._runs.get(run)
        pages = (each.url for each in tracked.trackers if each.url) if tracked is not None else iter(())
        return next(pages, "")

    def update(self, runs: Mapping[str, Sequence[RankFollower]], moment: float, faults: BoxFaults) -> None:
        """Take the state of the ranks of each run on this node. `moment` is monotonic."""
        notes: dict[Path, _Note] = {}
        began: dict[str, float] = {}
        tracked: dict[str, TrackedRun] = {}
        for run, ranks in runs.items():
            for rank in (each for each in ranks if each.header.identity.rank == 0):
                with faults.contain(rank.path):
                    note = notes[rank.path] = self._read(rank.path, rank.owner)
                    if note.trackers:
                        began[run] = min(self._began.get(run, moment), rank.header.started_monotonic)
                        figures = _figures(rank, moment, began[run])
                        tracked[run] = TrackedRun(run, rank.owner, note.trackers, figures)
        self._notes, self._began, self._runs = notes, began, MappingProxyType(tracked)

    def _read(self, box: Path, owner: int) -> _Note:
        """Return the note beside a box, read again only if it has changed; none if its mode hides it."""
        path = box.with_suffix(SUFFIX)
        try:
            status = look(path)
            changed = (status.st_ino, status.st_ctime_ns)  # which a new mode changes, too
            known = self._notes.get(box)
            if known is not None and known.changed == changed:
                return known
            return _Note(changed, () if is_hidden(path) else load_note(path, owner))
        except (OSError, ValueError):  # there is none, or it is no file
            return _Note((0, 0), ())


def trackers_beside(box: Path, owner: int) -> tuple[Tracker, ...]:
    """Return the trackers that the rank of a box of this owner uses; none where its note is of no use."""
    try:
        return load_note(box.with_suffix(SUFFIX), owner)
    except (OSError, ValueError):
        return ()


def load_note(path: Path, owner: int) -> tuple[Tracker, ...]:
    """Return the trackers in a note; none if it is not the owner's, or too large. Raises OSError,
    ValueError."""
    return parse_note(read_owned(path, owner, MOST_BYTES))


def _figures(rank: RankFollower, moment: float, began: float) -> Figures:
    steps = rank.totals.steps
    return Figures(
        moment=moment,
        running_seconds=max(0.0, moment - began),
        last_step=steps.last_step,
        steps=steps.steps,
        seconds=steps.seconds,
        data_wait_seconds=steps.phase_seconds.get(DATA_WAIT, 0.0),
        communication_seconds=steps.phase_seconds.get(COMMUNICATION, 0.0),
        late_steps=steps.variation.late_steps,
    )
