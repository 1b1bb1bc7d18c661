"""How long a rank may go without progress, learnt from its own history.

A start-up, a step, a checkpoint and an evaluation have separate histories. NVIDIA's resiliency extension
takes five times the longest time observed of a kind, and does not count the first 5 steps of a process
(compilation, caches) as normal steps. The rule here differs in two points:

- The timeout is five times the second longest time, and a step that an exception ended does not count.
- A step beyond the timeout is a stall, and teaches nothing, however often the run stalls. It is learnt only
  as a routine: three like it at even distances, such as evaluations that nobody marks or steps that have all
  become longer, or five like it within 500 steps. Stalls come at odd moments and last for odd times.
- The start of a process, up to the end of its first 5 steps, is a kind of its own: a restart loads a
  checkpoint and compiles, which takes longer than any step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

FACTOR = 5.0
"""Timeout over the second longest observed time."""
LONGEST_FACTOR = 1.5
"""Checkpoints, evaluations and starts are few: the single longest one is allowed half as much again."""
MOST_RAISED = 3.0
"""A single long checkpoint or evaluation, which may have been a stall, raises the timeout at most so many
times. Not so a start: one that compiles takes many times what the others take."""
SKIPPED_STEPS = 5
"""First steps of a process that belong to its start-up."""
SECTIONS = ("checkpoint", "evaluation")
"""Phases that do not count in a step's normal duration."""


def is_too_long(pause: float, timeout: float | None, share: float = 1.0) -> bool:
    """Return True if a rank went without progress for more than this share of its timeout, if it has one.

    This is the one rule by which suspicion, stalls, incidents and the account of time judge a pause.
    """
    return timeout is not None and pause > share * timeout


class Longest:
    """The two longest times of one kind, in seconds."""

    def __init__(self) -> None:
        self._longest: float | None = None
        self._second_longest: float | None = None

    def add(self, seconds: float) -> None:
        if not 0.0 <= seconds < math.inf:
            return
        if self._longest is None or seconds > self._longest:
            self._longest, self._second_longest = seconds, self._longest
        elif self._second_longest is None or seconds > self._second_longest:
            self._second_longest = seconds

    def timeout(self, *, longest_factor: float = 0.0, most_raised: float = math.inf) -> float | None:
        """Return 5 times the second longest, at least the longest times `longest_factor`; None without any.

        most_raised: the longest one raises the timeout at most so many times.

        A single observation counts as the second longest.
        """
        if self._longest is None:
            return None
        if self._second_longest is None:
            return FACTOR * self._longest
        usual = FACTOR * self._second_longest
        return max(usual, min(longest_factor * self._longest, most_raised * usual))


_EVENLY, _OFTEN = 3, 5
"""Long steps that make a routine: at even distances, or so many within the next number of steps."""
_OFTEN_WITHIN = 500
_UNEVEN_SHARE = 0.1
"""By which two distances may differ."""
_ALIKE = 2.0
"""Longest over shortest of a routine."""


class UsualSteps(Longest):
    """The two longest times of normal steps, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._limit = math.inf
        self._beyond: deque[tuple[int, float]] = deque(maxlen=_OFTEN)
        """Number and seconds of the last steps beyond the timeout."""

    def add(self, seconds: float) -> None:
        self._count += 1
        if seconds <= self._limit:
            super().add(seconds)
        elif seconds < math.inf:
            self._beyond.append((self._count, seconds))
            if not _is_routine(self._beyond):
                return
            for _, each in self._beyond:
                super().add(each)
            self._beyond.clear()
        self._limit = self.timeout() or math.inf


def _is_routine(steps: Sequence[tuple[int, float]]) -> bool:
    last = list(steps)[-_EVENLY:]
    if len(last) == _EVENLY and _are_alike(last):
        (first, _), (middle, _), (end, _) = last
        before, after = middle - first, end - middle
        if abs(before - after) <= _UNEVEN_SHARE * max(before, after):
            return True
    often = len(steps) == _OFTEN and steps[-1][0] - steps[0][0] < _OFTEN_WITHIN
    return often and _are_alike(steps)


def _are_alike(steps: Sequence[tuple[int, float]]) -> bool:
    seconds = [each for _, each in steps]
    return max(seconds) <= _ALIKE * min(seconds)


class LearntTimeouts:
    """The timeouts of one rank, and the histories that they are learnt from."""

    def __init__(self) -> None:
        self._steps = UsualSteps()
        self._sections = {phase: Longest() for phase in SECTIONS}
        self._starts = Longest()
        self._skipped = 0
        self._start_up_since: float | None = None
        """During the start-up: end of its latest step, or the start of the process before the first one. None
        afterwards, and if the start was not seen."""
        self._longest_of_start = 0.0
        self._failed_end = math.nan

    def begin_process(self, moment: float) -> None:
        """Note when another process of the rank began, monotonic."""
        self._start_up_since = moment
        self._longest_of_start = 0.0
        self._skipped = 0

    def step_failed(self, ended: float) -> None:
        """Note that an exception ended the step that ends at this moment: it is not a normal one."""
        self._failed_end = ended

    def step(self, seconds: float, ended: float) -> None:
        """Add the time from the end of the step before, without checkpoints and evaluation.

        ended: end of the step, monotonic.
        """
        if ended == self._failed_end:
            return
        if self._start_up_since is not None and ended <= self._start_up_since:
            return  # of the process before
        self._skipped += 1
        if self._skipped > SKIPPED_STEPS:
            self._steps.add(seconds)
            return
        if self._start_up_since is None:
            return
        self._longest_of_start = max(self._longest_of_start, ended - self._start_up_since)
        self._start_up_since = ended
        if self._skipped == SKIPPED_STEPS:
            self._starts.add(self._longest_of_start)
            self._start_up_since = None

    def section(self, phase: str, seconds: float) -> None:
        """Add how long a checkpoint or an evaluation took."""
        if phase in self._sections:
            self._sections[phase].add(seconds)

    def timeout(self, open_phase: str | None) -> float | None:
        """Return the longest normal time without progress while the rank is in this phase; None if unknown.

        A section follows a step or a start, and is allowed the time of both.
        """
        starting = self._start_up_since is not None
        own = self._starts.timeout(longest_factor=LONGEST_FACTOR) if starting else self._steps.timeout()
        if open_phase not in self._sections:
            return own or None
        sections = self._sections[open_phase]
        section = sections.timeout(longest_factor=LONGEST_FACTOR, most_raised=MOST_RAISED)
        if starting:
            return None if own is None else own + (section or 0.0)
        return None if section is None else section + (own or 0.0)
