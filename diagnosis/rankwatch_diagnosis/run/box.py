"""One black box, read as it stands: who wrote it, how the rank is, and its newest records."""

from __future__ import annotations

import socket
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
from rankwatch_agent.training.attempts import Lifetime
from rankwatch_agent.training.follower import RankFollower
from rankwatch_agent.training.totals import RankTotals
from rankwatch_diagnosis.run.copied_ranks import CopiedRanks

_POLLS = 4
"""A ring that has gone round is found at the first poll and read at the second; a hole is waited for."""
_MOST_POLLS = 256
_MOST_LOOKS = 8
"""At a box whose words change while it is read."""
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
    seen_wall: float
    """Unix time, by the pair of clocks in the header where it was read on the rank's host, at which all of it
    was so at the latest."""
    changed_wall: float
    """When the file was last changed other than through memory: a copy's is when it was made."""
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

    def lifetime(self) -> Lifetime:
        """Its process on the wall clock, to be compared with those of other ranks."""
        ended = not self.alive or self.ended
        took_part = self.now.steps_completed > 0 or any(each.enqueued for each in self.now.groups)
        return Lifetime(self.header.started_wall, self.wall(self.last_sign), ended, took_part)


def read_box(path: Path, *, most_records: int, copied: CopiedRanks | None = None) -> Box:
    """Read one; at most its newest `most_records`. Raises BlackBoxError.

    copied: nobody holds the lock of a copy, so what was known of the rank is taken.
    """
    totals = RankTotals(lambda _: None, max_names=_MOST_NAMES)
    follower = RankFollower(path, totals, in_its_place=False)
    try:
        tape = _Tape(path, most_records)
        try:
            seen_wall, alive = _read_together(follower, tape)
            records, names = tape.records()
        finally:
            tape.close()
        if follower.starts > 1:  # another process has taken the rank meanwhile
            return read_box(path, most_records=most_records, copied=copied)
        now = follower.now
        phase = follower.open_phase
        state = follower.state
        if copied is not None and state is RankState.LOST:
            state = copied.states.get(follower.header.identity.rank, state)
            alive = state not in ENDED_STATES
        started = follower.header.started_monotonic
        return Box(
            header=follower.header,
            now=now,
            state=state,
            alive=alive,
            failure=next(iter(totals.lifecycle.failures), "") if state is RankState.FAILED else "",
            failed_in_collective=_failed_in_collective(records),
            open_phase=phase if state not in ENDED_STATES or state in _WITHOUT_GOODBYE else None,
            timeout=totals.timeouts.timeout(phase[0] if phase else None),
            last_progress=max(totals.last_progress, now.step_ended, started),
            last_sign=max(totals.last_record, now.step_ended, now.step_began, *now.phases_began.values()),
            seen_wall=seen_wall,
            changed_wall=tape.changed_wall,
            records=records,
            names=names,
            missed=tape.missed,
        )
    finally:
        follower.close()


_WITHOUT_GOODBYE = frozenset({RankState.LOST, RankState.TERMINATED})
"""Their open phase is where they were when they ended."""


def _read_together(follower: RankFollower, tape: _Tape) -> tuple[float, bool]:
    """Poll both until they are of one moment; that moment, and whether a process holds the lock.

    The words are written while they are read: what they say is open the records may show as complete.
    """
    for _ in range(_MOST_LOOKS):
        alive = tape.writer_alive()
        seen_wall = _clock(follower.header)
        _catch_up(follower)
        tape.read_on()
        if tape.now().groups == follower.now.groups and alive == tape.writer_alive():
            break
    return seen_wall, alive and follower.state not in _WITHOUT_GOODBYE


def _catch_up(follower: RankFollower) -> None:
    """Poll until nothing is new; each poll takes the words first and the records after them."""
    idle = 0
    for _ in range(_MOST_POLLS):
        before = follower.totals.records
        follower.poll(time.monotonic())
        idle = 0 if follower.totals.records > before else idle + 1
        if idle == _POLLS:
            break


def _clock(header: Header) -> float:
    """Unix time of now by the clock of the rank: that of its host may have been set since it began."""
    if header.identity.host == socket.gethostname() and time.monotonic() >= header.started_monotonic:
        return header.wall(time.monotonic())
    return time.time()


def _failed_in_collective(records: Sequence[RawRecord]) -> bool:
    for record in reversed(records):
        if record.kind == RecordKind.COLLECTIVE:
            return bool(layout.COLLECTIVE.unpack_from(record.payload)[3] & layout.FAILED)
    return False


class _Tape:
    """The newest records of a box."""

    def __init__(self, path: Path, most: int) -> None:
        self._reader = Reader(path)
        self._found: deque[RawRecord] = deque(maxlen=most)
        self.changed_wall = path.lstat().st_ctime
        self.writer_alive = self._reader.writer_alive
        self.now = self._reader.now
        self.close = self._reader.close

    @property
    def missed(self) -> int:
        return self._reader.missed

    def read_on(self) -> None:
        """Until nothing is new."""
        idle = 0
        for _ in range(_MOST_POLLS):
            new = self._reader.poll()
            self._found.extend(new)
            idle = 0 if new else idle + 1
            if idle == _POLLS:
                break

    def records(self) -> tuple[tuple[RawRecord, ...], dict[int, str]]:
        """With the names that they use."""
        names = {number: self._reader.name(number) for number in {each.name for each in self._found}}
        return tuple(self._found), names
