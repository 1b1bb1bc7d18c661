"""All boxes of a run: read, sorted out, and what could not be read counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

from rankwatch.conventions import RankState
from rankwatch.errors import BlackBoxError
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.attempts import in_present_attempt
from rankwatch_diagnosis.run.box import Box, read_box
from rankwatch_diagnosis.run.copied_ranks import CopiedRanks

MOST_RECORDS = 2_000_000
"""Of all boxes together; each gets an equal part, and keeps its newest."""
_LEAST_RECORDS = 1_000
MOST_RANKS = 1 << 17
"""Of a run; a box that tells of more is broken."""
_TICK_SECONDS = 0.01
"""By how much the time in a file's inode may lag: it is taken at a tick of the kernel."""
_COPIED_AFTER_SECONDS = 0.002
"""So long after the last sign in it a file came to be as it is: a copy. A rank that writes into a page of its
box for the first time changes the file, too, right after it has looked at the clock; later it does not."""
_OLD_SECONDS = 60.0
"""Without a sign before the copy: whether the run was already over then, the copy does not tell."""


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """The usable boxes of one run."""

    run: str
    world_size: int
    by_rank: Mapping[int, Box]
    skipped: Mapping[str, int]
    """Why -> how many boxes."""
    first_reason: str
    """What was said of the first box that was skipped."""
    copied: bool
    moment: float | None
    """Unix time at which the boxes were as they are: now while a rank lives, else when they were copied; None
    where it is not known."""
    copied_alive: bool = False
    """They are plain copies, made at the moments at which they count as seen: ranks may have lived then."""

    @property
    def liveness_known(self) -> bool:
        """Whether a free lock means a lost process.

        Where not one process is left and none was ended by a signal or in a collective, the boxes may be
        copies, or the whole job was killed after it had stopped: only the last words count then.
        """
        found = self.by_rank.values()
        if self.copied_alive:
            return False
        if any(each.alive or each.state is RankState.TERMINATED for each in found):
            return True
        failed = [each for each in found if each.state is RankState.FAILED]
        # One that failed by itself needs no lost rank to explain it, and may be why the others were ended.
        return bool(failed) and all(each.failed_in_collective for each in failed)

    @property
    def lost(self) -> tuple[int, ...]:
        """Ranks whose process is gone without a last word, while others live or were ended by that."""
        if not self.liveness_known:
            return ()
        return tuple(sorted(rank for rank, each in self.by_rank.items() if each.state is RankState.LOST))

    @property
    def living(self) -> tuple[Box, ...]:
        """Boxes that a process writes, or wrote when they were copied."""
        return tuple(each for each in self.by_rank.values() if each.alive and not each.ended)


def read_boxes(paths: Iterable[Path], *, copied: CopiedRanks | None) -> Boxes:
    """Read all; what is broken is counted. Raises UserError where none is left.

    copied: the boxes are copies, and this is known of their ranks.
    """
    listed = list(paths)
    most = max(_LEAST_RECORDS, MOST_RECORDS // max(1, len(listed)))
    found: list[Box] = []
    skipped: Counter[str] = Counter()
    first = ""
    for path in listed:
        try:
            box = read_box(path, most_records=most, copied=copied)
            if box.header.identity.world_size > MOST_RANKS:
                raise BlackBoxError(f"{path} tells of more than {MOST_RANKS} ranks", reason="garbage")
            found.append(box)
        except BlackBoxError as error:
            skipped[error.reason] += 1
            first = first or str(error)
    if not found:
        raise UserError(f"none of the {len(listed)} black boxes can be used: {first}")
    copied_alive = copied is None and _are_copies(found)
    if copied_alive:
        found = [replace(box, seen_wall=box.changed_wall) for box in found]
    present = _of_present_attempt(found)
    if len(present) < len(found):
        skipped["of an earlier attempt"] += len(found) - len(present)
    run, world_size = _usual(present)
    by_rank: dict[int, Box] = {}
    for box in sorted(present, key=lambda each: each.header.started_wall):
        identity = box.header.identity
        if (identity.run, identity.world_size) != (run, world_size):
            skipped["of another run"] += 1
        elif identity.rank in by_rank:
            skipped["second of a rank"] += 1
            by_rank[identity.rank] = box
        else:
            by_rank[identity.rank] = box
    return Boxes(
        run=run,
        world_size=world_size,
        by_rank=dict(sorted(by_rank.items())),
        skipped=dict(skipped),
        first_reason=first,
        copied=copied is not None,
        moment=_moment(by_rank, copied, copied_alive=copied_alive),
        copied_alive=copied_alive,
    )


def _are_copies(found: Sequence[Box]) -> bool:
    """Nobody holds a lock, and all files came to be as they are soon after the last sign in them."""
    ages = [each.changed_wall - each.wall(each.last_sign) for each in found]
    if any(each.alive for each in found) or min(ages) < -_TICK_SECONDS:
        return False
    return max(ages) > _COPIED_AFTER_SECONDS and min(ages) < _OLD_SECONDS


def _of_present_attempt(found: Sequence[Box]) -> list[Box]:
    return list(compress(found, in_present_attempt([each.lifetime() for each in found])))


def _moment(by_rank: Mapping[int, Box], copied: CopiedRanks | None, *, copied_alive: bool) -> float | None:
    if copied is not None:
        return None if copied.moment is None else next(iter(by_rank.values())).wall(copied.moment)
    if copied_alive or any(each.alive for each in by_rank.values()):
        return max(each.seen_wall for each in by_rank.values())
    return None


def _usual(boxes: list[Box]) -> tuple[str, int]:
    """Run and world size that most boxes tell; of an elastic run those of the newest start."""
    counts = Counter((each.header.identity.run, each.header.identity.world_size) for each in boxes)
    newest: dict[tuple[str, int], float] = {}
    for each in boxes:
        key = (each.header.identity.run, each.header.identity.world_size)
        newest[key] = max(newest.get(key, 0.0), each.header.started_wall)
    return max(counts, key=lambda key: (counts[key], newest[key]))
