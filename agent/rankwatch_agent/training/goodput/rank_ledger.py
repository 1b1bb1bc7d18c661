"""The time of one rank, each second in exactly one state.

A cursor marks the moment up to which the time is attributed. It only moves forward, and whatever it passes is
attributed at once, so that the states sum to the time by construction. What is attributed is never taken
back: they become counters.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from rankwatch.blackbox.records import Header
from rankwatch.conventions.states import GoodputState
from rankwatch.conventions.vocabulary import CHECKPOINT, COMMUNICATION, DATA_WAIT, EVALUATION
from rankwatch_agent.training.goodput.shared import MOST_ATTEMPTS, AttemptHistory, Transfers
from rankwatch_agent.training.steps.timeouts import is_too_long

FOLLOWING_STEPS = 10
"""The first step of a process is compared with the median of so many that follow it."""
_STATES = tuple(GoodputState)
_MOST_SECTIONS = 1024
_SHORTEST_STALL_SECONDS = 1.0
_LONGEST_SECONDS = 86400.0 * 366
_STATE_OF_PART = {
    DATA_WAIT: GoodputState.DATA,
    CHECKPOINT: GoodputState.CHECKPOINT,
    EVALUATION: GoodputState.EVALUATION,
}
Seconds = dict[GoodputState, float]


class Interval(NamedTuple):
    """Time outside of steps whose state is known. Moments are monotonic."""

    began: float
    ended: float
    state: GoodputState


class Process(NamedTuple):
    """The process that has the rank, and its clocks."""

    pid: int
    started_monotonic: float
    started_wall: float
    attempt: int

    def wall(self, moment: float) -> float:
        """Return the Unix time of a monotonic moment."""
        return moment - self.started_monotonic + self.started_wall


@dataclass
class FirstStep:
    """The first step of a process, until enough others show what it should have taken."""

    seconds: float
    states: Seconds
    following: list[float] = field(default_factory=list)


class RankLedger:
    """The time of one rank, over its processes. Moments are monotonic unless they are called wall.

    attempts: those of the run, which all of its ranks note their steps in.
    transfers: what transfers take in this run, without waiting.
    """

    def __init__(self, attempts: AttemptHistory, transfers: Transfers, role: str = "") -> None:
        self.by_attempt: dict[int, Seconds] = {}
        self.process: Process | None = None
        """The present process; None before the first one."""
        self.cursor = 0.0
        self.ended = False
        """The present process is over, and its time is attributed."""
        self.stepped = False
        """The present process has completed a step."""
        self.first: FirstStep | None = None
        """The first step of the process, while it waits for others."""
        self.unseen_until = 0.0
        """Unix time at which this agent began: what became of a process before that, nobody saw."""
        self.role = role
        """Its pipeline stage."""
        self._attempts = attempts
        self._transfers = transfers
        self._present: Seconds = {}
        """Of the present attempt."""
        self._sections: deque[Interval] = deque(maxlen=_MOST_SECTIONS)
        self._missed = False
        self._failed = math.nan
        """Start of a step that an exception ended."""

    @property
    def seconds(self) -> Seconds:
        """Over all attempts."""
        found = dict.fromkeys(_STATES, 0.0)
        for attempt in self.by_attempt.values():
            add_up(found, attempt)
        return found

    @property
    def attempt(self) -> int:
        """Of the present process."""
        return self.process.attempt if self.process is not None else 0

    @property
    def cursor_wall(self) -> float:
        """Unix time up to which the time is attributed."""
        return self.process.wall(self.cursor) if self.process is not None else 0.0

    def begin_process(self, header: Header) -> None:
        """Begin a process of the rank: another one, or one known from before a restart of the agent."""
        identity = header.identity
        process = Process(header.pid, header.started_monotonic, header.started_wall, identity.attempt)
        started = process_start(header)
        self._attempts.begin(identity.attempt, header.wall(started), identity.world_size)
        if process == self.process:
            return
        if self.process is not None:
            self._settle_first_step()
            self._pass_to_next(process.wall(started))
            self._join_oldest(MOST_ATTEMPTS - 1)
        self.process, self.cursor = process, started
        self._present = self.by_attempt.setdefault(process.attempt, {})
        self.ended = self.stepped = self._missed = False
        self._sections.clear()

    def forget(self) -> None:
        """Drop it from what the ranks of its role are compared by."""
        self._transfers.forget()

    def resume(self) -> None:
        """Go on with what was saved of the present attempt."""
        self._present = self.by_attempt.setdefault(self.attempt, {})

    def _pass_to_next(self, started: float) -> None:
        """Attribute the time until the next process started, in Unix time. A clock that was set back shows
        none. A process whose end this agent did not see may have run until the agent began."""
        cursor = self.cursor_wall
        if _is_time(cursor, started):
            unseen = 0.0 if self.ended else max(0.0, min(self.unseen_until, started) - cursor)
            self._add(GoodputState.UNKNOWN, unseen)
            self._add(GoodputState.DOWN, started - cursor - unseen)

    def missed(self) -> None:
        """Record are lost: until the next step nobody knows what the rank did."""
        self._missed = True

    def section(self, began: float, ended: float, name: str) -> None:
        """Take a phase outside of steps that has ended."""
        state = _STATE_OF_PART.get(name)
        if state is not None:
            self._sections.append(Interval(began, ended, state))

    def restored(self, began: float, ended: float) -> None:
        """Take the time in which the rank loaded a checkpoint."""
        self._sections.append(Interval(began, ended, GoodputState.RESTORE))

    def step_failed(self, start: float) -> None:
        """Note that an exception ended the step that began then: it completed nothing."""
        self._failed = start

    def step(
        self,
        number: int,
        start: float,
        end: float,
        parts: Mapping[str, float],
        timeout: Callable[[], float | None],
    ) -> None:
        """Charge a settled step of the present process. parts: seconds by phase, which sum to its length.

        timeout: longest time without progress that is normal; None while it is not known.
        """
        process = self.process
        if process is None or start == self._failed or not _is_time(max(start, self.cursor), end):
            return
        replayed = self._attempts.note_step(process.attempt, number, process.wall(end))
        self._pass_gap(start, replayed=replayed, timeout=timeout)
        width = end - max(start, self.cursor)
        sections = parts.get(CHECKPOINT, 0.0) + parts.get(EVALUATION, 0.0)
        if self.stepped and self._is_stall(width - sections, timeout):
            states = {GoodputState.STALL: width}
        elif replayed:
            states = {GoodputState.REPLAYED: width}
        else:
            states = self._states(parts, width, end - start)
        self._take_step(width, states)
        self.cursor = end

    def stall(self, moment: float) -> None:
        """Note that nothing has happened for longer than is normal."""
        self._pass_sections(moment, GoodputState.UNKNOWN if self._missed else GoodputState.STALL)

    def end_process(self, last_sign: float, *, in_order: bool) -> None:
        """End the process; `last_sign` is its last sign of life. Later calls for it do nothing."""
        if self.ended:
            return
        self._settle_first_step()
        self._transfers.leave()
        if self._missed:
            rest = GoodputState.UNKNOWN
        elif not self.stepped:
            rest = GoodputState.STARTUP
        else:
            rest = GoodputState.IDLE if in_order else GoodputState.DOWN
        self._pass_sections(last_sign, rest)
        self.ended = True

    def idle(self, moment: float) -> None:
        """Charge the time since the rank has ended, while others of its attempt go on."""
        self._pass_sections(moment, GoodputState.IDLE)

    def down(self, wall: float) -> None:
        """Charge the time between the rank's end and the next attempt, which began at this Unix time."""
        if wall > self.cursor_wall:
            self._pass_sections(self.cursor + wall - self.cursor_wall, GoodputState.DOWN)

    def _pass_gap(self, until: float, *, replayed: bool, timeout: Callable[[], float | None]) -> None:
        """Attribute what lies before a step."""
        if self._missed:
            rest = GoodputState.UNKNOWN
            self.stepped = True  # nobody knows whether this is the first one
        elif not self.stepped:
            rest = GoodputState.STARTUP
        elif self._is_stall(
            until
            - self.cursor
            - sum(max(0.0, min(each.ended, until) - max(each.began, self.cursor)) for each in self._sections),
            timeout,
        ):
            rest = GoodputState.STALL
        else:
            rest = GoodputState.REPLAYED if replayed else GoodputState.PRODUCTIVE
        self._pass_sections(until, rest)
        self._missed = False

    @staticmethod
    def _is_stall(pause: float, timeout: Callable[[], float | None]) -> bool:
        """Return True for a stall, not for a short pause: its timeout costs too much to work out for each
        step."""
        return pause >= _SHORTEST_STALL_SECONDS and is_too_long(pause, timeout())

    def _pass_sections(self, until: float, rest: GoodputState) -> None:
        """Move the cursor: what lies in no section is `rest`. Of two sections at one time the one that began
        first counts, and a restore before all: its phase is that of any checkpoint."""
        if not _is_time(self.cursor, until):
            return
        known = 0.0
        if self._sections:
            order = sorted(
                self._sections, key=lambda each: (each.state is not GoodputState.RESTORE, each.began)
            )
            taken: list[tuple[float, float]] = []
            for each in order:
                seconds = _uncovered(max(each.began, self.cursor), min(each.ended, until), taken)
                self._add(each.state, seconds)
                known += seconds
        self._add(rest, until - self.cursor - known)
        self.cursor = until
        while self._sections and self._sections[0].ended <= self.cursor:
            self._sections.popleft()

    def _states(self, parts: Mapping[str, float], width: float, whole: float) -> Seconds:
        """Return the states of a step, which sum to `width`: less than all where the cursor is in it."""
        if not math.isfinite(sum(parts.values())):  # no honest clock of a device
            return {GoodputState.PRODUCTIVE: width}
        found: Seconds = {}
        productive = whole
        for name, seconds in parts.items():
            if name == COMMUNICATION:
                waited = self._transfers.waited(seconds)
                found[GoodputState.COMMUNICATION] = seconds - waited
                found[GoodputState.STRAGGLER] = waited
                productive -= seconds
            elif (state := _STATE_OF_PART.get(name)) is not None:
                found[state] = seconds
                productive -= seconds
        found[GoodputState.PRODUCTIVE] = max(0.0, productive)
        scale = width / max(whole, whole - productive)
        if not 0.0 < scale < math.inf:
            return {GoodputState.PRODUCTIVE: width}
        return found if scale == 1.0 else {state: seconds * scale for state, seconds in found.items()}

    def _take_step(self, width: float, states: Seconds) -> None:
        if not self.stepped:
            self.stepped = True
            self.first = FirstStep(width, states)
            return
        add_up(self._present, states)
        if self.first is not None:
            self.first.following.append(width)
            if len(self.first.following) >= FOLLOWING_STEPS:
                self._settle_first_step()

    def _settle_first_step(self) -> None:
        """Charge as start-up what the first step took longer than others: compilation, first allocations."""
        first, self.first = self.first, None
        if first is None:
            return
        excess = max(0.0, first.seconds - median(first.following)) if first.following else 0.0
        self._add(GoodputState.STARTUP, excess)
        left = first.seconds - excess
        for state, seconds in first.states.items():
            self._add(state, seconds * left / first.seconds)

    def join_attempts(self) -> None:
        """Keep one of all attempts, with the time of the others."""
        self._join_oldest(1)
        self.resume()

    def _join_oldest(self, most: int) -> None:
        """Join the oldest attempts, as the spans of attempts are joined."""
        while len(self.by_attempt) > most:
            first, second, *_ = sorted(self.by_attempt)
            add_up(self.by_attempt[second], self.by_attempt.pop(first))

    def _add(self, state: GoodputState, seconds: float) -> None:
        if seconds:
            present = self._present
            present[state] = present.get(state, 0.0) + seconds


def add_up(total: Seconds, more: Seconds) -> None:
    """Add the seconds of each state to `total`, in place."""
    for state, seconds in more.items():
        total[state] = total.get(state, 0.0) + seconds


def process_start(header: Header) -> float:
    """Return when a rank's process started, monotonic; when its box was made, where that is not known."""
    if header.process_started_wall is None:
        return header.started_monotonic
    return header.started_monotonic - max(0.0, header.started_wall - header.process_started_wall)


def _is_time(began: float, ended: float) -> bool:
    """Return True if time can have passed between two moments of a box, which may hold anything."""
    return 0.0 < ended - began < _LONGEST_SECONDS


def _uncovered(began: float, ended: float, taken: list[tuple[float, float]]) -> float:
    """Return the seconds of an interval that no other one in `taken` holds; add it to them."""
    if ended <= began:
        return 0.0
    seconds, at = 0.0, began
    for first, last in sorted(taken):
        if first > at:
            seconds += max(0.0, min(first, ended) - at)
        at = max(at, last)
    seconds += max(0.0, ended - at)
    taken.append((began, ended))
    return seconds
