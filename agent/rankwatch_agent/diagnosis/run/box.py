"""One black box, read as it stands: who wrote it, how the rank is, and its newest records."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.records import Header, NowBlock, RawRecord
from rankwatch.conventions import ENDED_STATES, RankState
from rankwatch_agent.diagnosis.run.copied_ranks import CopiedRanks
from rankwatch_agent.ranks.account import RankAccount
from rankwatch_agent.ranks.follower import RankFollower

_POLLS = 4
"""A ring that has gone round is found at the first poll and read at the second; a hole is waited for."""
_MOST_POLLS = 256
_MOST_NAMES = 1_000


@dataclass(frozen=True, kw_only=True)
class Box:
    """A black box at one moment. Moments are monotonic unless they say wall."""

    header: Header
    now: NowBlock
    state: RankState
    alive: bool
    """A process holds the lock, or held it when the box was copied."""
    failure: str
    """Type of the exception that ended the rank; empty where none did."""
    failed_in_collective: bool
    """Its last collective ended with an error."""
    open_phase: tuple[str, float] | None
    """Innermost open phase and when it began."""
    timeout: float | None
    """Longest normal time without progress, learnt from the rank itself; None while it is not known."""
    last_progress: float
    last_sign: float
    """The newest moment that the box knows."""
    records: tuple[RawRecord, ...]
    names: Mapping[int, str]
    """Number of a name -> name, of those that records use."""
    missed: int

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.header.identity.rank

    @property
    def ended(self) -> bool:
        """Whether its process is over."""
        return self.state in ENDED_STATES

    def wall(self, monotonic: float) -> float:
        """Unix time of a moment."""
        return self.header.wall(monotonic)


def read_box(path: Path, *, most_records: int, copied: CopiedRanks | None = None) -> Box:
    """Read one; at most its newest `most_records`. Raises BlackBoxError.

    copied: nobody holds the lock of a copy, so what was known of the rank is taken.
    """
    account = RankAccount(lambda _: None, max_names=_MOST_NAMES)
    follower = RankFollower(path, account, in_its_place=False)
    try:
        moment = time.monotonic()
        for _ in range(_POLLS):
            follower.poll(moment)
        records, names, missed, alive = _records(path, most_records)
        now = follower.now
        phase = follower.open_phase
        state = follower.state
        if copied is not None and state is RankState.LOST:
            state = copied.states.get(follower.header.identity.rank, state)
            alive = state not in ENDED_STATES
        return Box(
            header=follower.header,
            now=now,
            state=state,
            alive=alive,
            failure=next(iter(account.life.failures), "") if state is RankState.FAILED else "",
            failed_in_collective=_failed_in_collective(records),
            open_phase=phase if state not in ENDED_STATES or state in _WITHOUT_GOODBYE else None,
            timeout=account.progress.timeout(phase[0] if phase else None),
            last_progress=max(account.last_progress, follower.header.started_monotonic),
            last_sign=max(account.last_record, now.step_ended, now.step_began, *now.phases_began.values()),
            records=records,
            names=names,
            missed=missed,
        )
    finally:
        follower.close()


_WITHOUT_GOODBYE = frozenset({RankState.LOST, RankState.TERMINATED})
"""Their open phase is where they were when they ended."""


def _failed_in_collective(records: Sequence[RawRecord]) -> bool:
    for record in reversed(records):
        if record.kind == RecordKind.COLLECTIVE:
            return bool(layout.COLLECTIVE.unpack_from(record.payload)[3] & layout.FAILED)
    return False


def _records(path: Path, most: int) -> tuple[tuple[RawRecord, ...], dict[int, str], int, bool]:
    reader = Reader(path)
    try:
        found: deque[RawRecord] = deque(maxlen=most)
        idle = 0
        for _ in range(_MOST_POLLS):
            new = reader.poll()
            found.extend(new)
            idle = 0 if new else idle + 1
            if idle == _POLLS:
                break
        numbers = {each.name for each in found}
        names = {number: reader.name(number) for number in numbers}
        return tuple(found), names, reader.missed, reader.writer_alive()
    finally:
        reader.close()
