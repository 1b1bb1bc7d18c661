"""The state of a rank, by what its box says of its end, its lock and the stacks that SIGTERM leaves."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rankwatch.conventions import Lifecycle
from rankwatch.conventions.states import RankState
from rankwatch.lifecycle import TERMINATED_SUFFIX
from rankwatch.untrusted.folders import look

_STATE_OF = {
    Lifecycle.FINISHED: RankState.FINISHED,
    Lifecycle.FAILED: RankState.FAILED,
    Lifecycle.INTERRUPTED: RankState.INTERRUPTED,
    Lifecycle.PREEMPTED: RankState.PREEMPTED,
    Lifecycle.EXITED: RankState.EXITED,
}


def rank_state(path: Path, ended_by: str, *, alive: bool, stepped: bool) -> RankState:
    """The state of the rank whose box this is.

    ended_by: the lifecycle event that ended it; empty, or anything else, where there is none.
    alive: a process holds the lock of the box.
    """
    if ended_by in _STATE_OF:
        return _STATE_OF[Lifecycle(ended_by)]
    if alive:
        return RankState.RUNNING if stepped else RankState.STARTING
    return RankState.TERMINATED if _wrote_stacks(path) else RankState.LOST


_WORST_FIRST = (
    RankState.LOST,
    RankState.FAILED,
    RankState.INTERRUPTED,
    RankState.PREEMPTED,
    RankState.TERMINATED,
    RankState.RUNNING,
    RankState.STARTING,
    RankState.EXITED,
    RankState.FINISHED,
)


def worst_state(states: Collection[RankState]) -> RankState:
    """The state of ranks taken together: the one that most needs a look."""
    return next(each for each in _WORST_FIRST if each in states)


def _wrote_stacks(path: Path) -> bool:
    try:
        return look(path.with_suffix(TERMINATED_SUFFIX)).st_size > 0
    except OSError:
        return False
