"""The black boxes of a run: each read in one pass, sorted by rank, and what could not be read counted."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

from rankwatch.blackbox import earlier_attempts, layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.records import Header, NowBlock, RawRecord
from rankwatch.conventions.states import ENDED_STATES, FailureKind, RankState
from rankwatch.errors import BlackBoxError
from rankwatch.trackers.finding import Tracker
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.boxes.follower import RankFollower
from rankwatch_agent.training.boxes.totals import RankTotals
from rankwatch_agent.training.checkpoints.operations import RankCheckpoints
from rankwatch_agent.training.conditions import Lifetime, in_present_attempt
from rankwatch_agent.training.life.failures import KILLED, Failure
from rankwatch_agent.training.tracked_runs import trackers_beside
from rankwatch_diagnosis.run.folder import CopiedRanks, RunFolder, find_run, read_copied_ranks

MOST_RECORDS = 2_000_000
"""Of all boxes together; each gets an equal part, and keeps its newest."""
_LEAST_RECORDS = 1_000
MOST_RANKS = 1 << 17
"""Of a run; a box that claims more is broken."""
_MOST_NAMES = 1_000
_TICK_SECONDS = 0.01
"""By how much the time in a file's inode may lag: the kernel takes it at a tick."""
_COPIED_AFTER_SECONDS = 0.002
"""A file that was changed this long after the last sign of life in it is a copy. A rank that writes into a
page of its box for the first time changes the file, too, but right after it has read the clock."""
_OLD_SECONDS = 60.0
"""A copy made this long after the last sign of life does not show whether the run was over by then."""
ENDED_BY_SIGNAL = frozenset({RankState.TERMINATED, RankState.INTERRUPTED})
"""States of ranks that were ended from outside."""
_WITH_FAILURE = frozenset({RankState.FAILED, RankState.LOST})
_OUT_OF_MEMORY = {
    FailureKind.GPU_OUT_OF_MEMORY: "lack of GPU memory",
    FailureKind.HOST_OUT_OF_MEMORY: "lack of host memory",
}
_WITHOUT_GOODBYE = frozenset({RankState.LOST, RankState.TERMINATED})
"""Ranks in these states stood in their open phase when they ended."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A black box at one moment. Moments are monotonic unless they are called wall."""

    header: Header
    now: NowBlock
    state: RankState
    alive: bool
    """A process holds the lock, or held it when the box was copied."""
    failure: Failure | None
    """The exception, exit status or crash that ended the rank; None where none is known."""
    failed_in_collective: bool
    """Its last collective ended with an error."""
    open_phase: tuple[str, float] | None
    """Innermost open phase and when it began."""
    timeout: float | None
    """Longest normal time without progress, learnt from the rank itself; None while it is not known."""
    last_progress: float
    last_sign: float
    """The newest moment that the box knows."""
    seen_wall: float
    """Unix time just before the box was read. What it shows to be open has been open at least until then."""
    changed_wall: float
    """Unix time at which the file was changed last, other than through memory: when a copy was made."""
    records: tuple[RawRecord, ...]
    names: Mapping[int, str]
    """Number of a name -> name, of those that records use, also in their payload."""
    missed: int
    """Records that were overwritten or torn."""
    checkpoints: RankCheckpoints
    """The checkpoint operations of its process."""
    trackers: tuple[Tracker, ...]
    """The runs of experiment trackers that the rank belongs to."""

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.header.identity.rank

    @property
    def target_steps(self) -> int:
        """Steps that the run wants; 0 where that is not known."""
        return self.now.target_steps or self.header.target_steps or 0

    @property
    def ended_by(self) -> str:
        """What ended the rank, with its message; empty where nothing is known."""
        if self.failure is None:
            return ""
        kind, text = (
            self.failure.kind,
            ": ".join(filter(None, (self.failure.exception, self.failure.message))),
        )
        if self.failure.exception == KILLED:
            return f"the kernel for lack of memory ({self.failure.message})"
        if kind is FailureKind.EXIT_STATUS:
            return f"exit status {self.failure.message}"
        return f"{_OUT_OF_MEMORY[kind]} ({text})" if kind in _OUT_OF_MEMORY else text

    @property
    def failed_by_itself(self) -> bool:
        """An exception ended it outside of collectives; inside, ranks fail when another one is gone."""
        return self.state is RankState.FAILED and not self.failed_in_collective

    @property
    def ended(self) -> bool:
        """Whether its process is over."""
        return self.state in ENDED_STATES

    def wall(self, monotonic: float) -> float:
        """Return the Unix time of a moment."""
        return self.header.wall(monotonic)

    def lifetime(self) -> Lifetime:
        """Return the life of its process on the wall clock, to be compared with those of other ranks."""
        took_part = self.now.steps_completed > 0 or any(each.enqueued for each in self.now.groups)
        ended = self.ended or not self.alive
        return Lifetime(self.header.started_wall, self.wall(self.last_sign), ended, took_part)


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """The usable boxes of one run."""

    run: str
    world_size: int
    by_rank: Mapping[int, Box]
    skipped: Mapping[str, int]
    """Why -> how many boxes."""
    first_reason: str
    """The message about the first box that was skipped."""
    copied: bool
    moment: float | None
    """Unix time at which the boxes were as they are: now while a rank lives, else when they were copied; None
    where it is not known."""
    earlier: tuple[Box, ...] = ()
    """Of attempts before the present one, whose ranks no process has taken since."""
    kept: tuple[Box, ...] = ()
    """Of earlier attempts, whose ranks another process has taken. Without their records."""
    copied_alive: bool = False
    """They are plain copies, made at the moments at which they count as seen: ranks may have lived then."""

    @property
    def liveness_known(self) -> bool:
        """Whether a free lock means a lost process.

        Where no process is left and none was ended by a signal or in a collective, the boxes may be copies,
        or the whole job was killed after it had stopped: only the final state counts then.
        """
        found = self.by_rank.values()
        if self.copied_alive:
            return False
        if any(each.alive or each.state in ENDED_BY_SIGNAL for each in found):
            return True
        failed = [each for each in found if each.state is RankState.FAILED]
        # One that failed by itself needs no lost rank to explain it, and may be why the others were ended.
        return bool(failed) and all(each.failed_in_collective for each in failed)

    @property
    def lost(self) -> tuple[int, ...]:
        """Ranks whose process is gone without saying so, while others live or were ended by that."""
        if not self.liveness_known:
            return ()
        return tuple(sorted(rank for rank, each in self.by_rank.items() if each.state is RankState.LOST))

    @property
    def attempt(self) -> str:
        """Such as "2 of at most 3"; empty for the first one where no other is known of."""
        newest = max((each.header.identity for each in self.by_rank.values()), key=lambda each: each.attempt)
        if newest.attempt == 0 and newest.most_attempts <= 1:
            return ""
        most = f" of at most {newest.most_attempts}" if newest.most_attempts > newest.attempt else ""
        return f"{newest.attempt + 1}{most}"

    @property
    def living(self) -> tuple[Box, ...]:
        """Boxes that a process writes, or wrote when they were copied."""
        return tuple(each for each in self.by_rank.values() if each.alive and not each.ended)


def read_run(directory: Path) -> tuple[RunFolder, CopiedRanks | None, Boxes]:
    """Read the one run in a directory. Raises UserError without a usable box.

    Where it is a bundle, what that says about the ranks comes with it.
    """
    folder = find_run(directory)
    copied = None if folder.bundle is None else read_copied_ranks(folder.bundle)
    return folder, copied, read_boxes(folder.boxes, copied=copied)


def read_boxes(paths: Iterable[Path], *, copied: CopiedRanks | None) -> Boxes:
    """Read all boxes; broken ones are counted. Raises UserError where none is left.

    copied: what is known of the ranks where the boxes are those of a bundle, else None.
    """
    listed = list(paths)
    most = max(_LEAST_RECORDS, MOST_RECORDS // max(1, len(listed)))
    found: list[Box] = []
    skipped: Counter[str] = Counter()
    first_reason = ""
    for path in listed:
        try:
            found.append(read_box(path, most_records=most, copied=copied))
        except BlackBoxError as error:
            skipped[error.reason] += 1
            first_reason = first_reason or str(error)
    if not found:
        raise UserError(f"none of the {len(listed)} black boxes can be used: {first_reason}")
    copied_alive = copied is None and _are_copies(found)
    if copied_alive:
        found = [replace(box, seen_wall=box.changed_wall) for box in found]
    is_present = in_present_attempt([each.lifetime() for each in found])
    present = list(compress(found, is_present))
    if len(present) < len(found):
        skipped["of an earlier attempt"] += len(found) - len(present)
    run, world_size = _most_common_run(present)
    by_rank = _by_rank(present, run, world_size, skipped)
    folders = dict.fromkeys(path.parent for path in listed)
    of_earlier = readable_boxes(
        (path for folder in folders for _, _, path in earlier_attempts.listed(folder)), most_records=0
    )
    return Boxes(
        run=run,
        world_size=world_size,
        by_rank=by_rank,
        skipped=dict(skipped),
        first_reason=first_reason,
        copied=copied is not None,
        moment=_moment(by_rank, copied, copied_alive=copied_alive),
        earlier=tuple(compress(found, (not each for each in is_present))),
        kept=tuple(each for each in of_earlier if each.header.identity.run == run),
        copied_alive=copied_alive,
    )


def readable_boxes(paths: Iterable[Path], *, most_records: int) -> Iterator[Box]:
    """Yield the boxes, each with at most its newest records; one that cannot be read is none."""
    for path in paths:
        with suppress(BlackBoxError, OSError):
            yield read_box(path, most_records=most_records)


def _are_copies(found: Sequence[Box]) -> bool:
    """Say if they are copies: unlocked, and changed after the last sign of life in them, one of them soon."""
    lags = [each.header.lag_seconds for each in found]
    ages = [each.changed_wall - each.wall(each.last_sign) for each in found]
    if any(each.alive for each in found) or min(ages) < -_TICK_SECONDS:
        return False
    ages = [max(0.0, age - lag) for age, lag in zip(ages, lags, strict=True)]
    return max(ages) > _COPIED_AFTER_SECONDS and min(ages) < _OLD_SECONDS


def _most_common_run(boxes: Sequence[Box]) -> tuple[str, int]:
    """Return run and world size of most boxes; of an elastic run those of the newest start."""
    counts = Counter((each.header.identity.run, each.header.identity.world_size) for each in boxes)
    newest: dict[tuple[str, int], float] = {}
    for each in boxes:
        key = (each.header.identity.run, each.header.identity.world_size)
        newest[key] = max(newest.get(key, 0.0), each.header.started_wall)
    return max(counts, key=lambda key: (counts[key], newest[key]))


def _by_rank(boxes: Sequence[Box], run: str, world_size: int, skipped: Counter[str]) -> dict[int, Box]:
    """Sort the boxes by rank; of two boxes of one rank the one that started last counts."""
    by_rank: dict[int, Box] = {}
    for box in sorted(boxes, key=lambda each: each.header.started_wall):
        identity = box.header.identity
        if (identity.run, identity.world_size) != (run, world_size):
            skipped["of another run"] += 1
            continue
        if identity.rank in by_rank:
            skipped["second of a rank"] += 1
        by_rank[identity.rank] = box
    return dict(sorted(by_rank.items()))


def _moment(by_rank: Mapping[int, Box], copied: CopiedRanks | None, *, copied_alive: bool) -> float | None:
    if copied is not None:
        return None if copied.moment is None else next(iter(by_rank.values())).wall(copied.moment)
    if copied_alive or any(each.alive for each in by_rank.values()):
        return max(each.seen_wall for each in by_rank.values())
    return None


def read_box(path: Path, *, most_records: int, copied: CopiedRanks | None = None) -> Box:
    """Read one box in one pass, with at most its newest `most_records`. Raises BlackBoxError.

    copied: what was known of the rank, as nobody holds the lock of a copy.
    """
    totals = RankTotals(lambda _: None, max_names=_MOST_NAMES)
    rank = RankFollower(path, totals, in_its_place=False, keep_records=most_records)
    try:
        if rank.header.identity.world_size > MOST_RANKS:
            raise BlackBoxError(f"{path} claims more than {MOST_RANKS} ranks", reason="garbage")
        seen_wall = _clock(rank.header)
        rank.poll(rank.header.started_monotonic + seen_wall - rank.header.started_wall, to_end=True)
        return _box(rank, seen_wall, copied)
    finally:
        rank.close()


def _clock(header: Header) -> float:
    """Return the Unix time by the clock of the rank: that of its host may have been set since it began."""
    if header.identity.host == socket.gethostname() and time.monotonic() >= header.started_monotonic:
        return header.wall(time.monotonic())
    return time.time()


def _box(rank: RankFollower, seen_wall: float, copied: CopiedRanks | None) -> Box:
    totals, now, state, alive = rank.totals, rank.now, rank.state, rank.alive
    failure = totals.lifecycle.last_failure
    if copied is not None and state is RankState.LOST:
        number = rank.header.identity.rank
        state = copied.states.get(number, state)
        alive = state not in ENDED_STATES
        failure = failure or copied.crashes.get(number)
    records = tuple(rank.newest)
    phase = rank.open_phase
    return Box(
        header=rank.header,
        now=now,
        state=state,
        alive=alive,
        failure=failure if state in _WITH_FAILURE else None,
        failed_in_collective=_failed_in_collective(records),
        open_phase=phase if state not in ENDED_STATES or state in _WITHOUT_GOODBYE else None,
        timeout=totals.timeouts.timeout(phase[0] if phase else None),
        last_progress=max(totals.last_progress, now.step_ended, rank.header.started_monotonic),
        last_sign=max(totals.last_record, now.step_ended, now.step_began, *now.phases_began.values()),
        seen_wall=seen_wall,
        changed_wall=rank.reader.changed_wall,
        records=records,
        names={number: rank.name(number) for number in set(_name_numbers(records))},
        missed=rank.missed,
        checkpoints=totals.checkpoints,
        trackers=trackers_beside(rank.path, rank.owner),
    )


def _name_numbers(records: Iterable[RawRecord]) -> Iterator[int]:
    """Yield the numbers of the names in these records: their own, stages of checkpoints, details of lifecycle
    events, and parameters."""
    for record in records:
        yield record.name
        if record.kind == RecordKind.CHECKPOINT:
            yield layout.CHECKPOINT.unpack_from(record.payload)[2]
        elif record.kind == RecordKind.LIFECYCLE:
            yield layout.LIFECYCLE.unpack_from(record.payload)[1]
        elif record.kind == RecordKind.FINGERPRINT:
            *_, first_parameter, group = layout.FINGERPRINT.unpack_from(record.payload)
            if group:
                yield first_parameter


def _failed_in_collective(records: Sequence[RawRecord]) -> bool:
    for record in reversed(records):
        if record.kind == RecordKind.COLLECTIVE:
            return bool(layout.COLLECTIVE.unpack_from(record.payload)[3] & layout.FAILED)
    return False
