"""How long a rank may go without progress, learnt from its own history.

A start-up, a step, a checkpoint and an evaluation have separate histories. NVIDIA's resiliency extension
takes five times the longest time observed of a kind, and does not count the first 5 steps of a process
(compilation, caches) as normal steps. The rule here differs in two points:

- The timeout is five times the second longest time, and a step that an exception ended does not count. A
  stall that resolved would otherwise raise the timeout to five times its own length. A duration that is seen
  twice is normal.
- The start of a process, up to the end of its first 5 steps, is a kind of its own: a restart loads a
  checkpoint and compiles, which takes longer than any step.
"""

from __future__ import annotations

import math

FACTOR = 5.0
"""Timeout over the second longest observed time."""
LONGEST_FACTOR = 1.5
"""Checkpoints, evaluations and starts are few: the single longest one is allowed half as much again."""
SKIPPED_STEPS = 5
"""First steps of a process that belong to its start-up."""
SECTIONS = ("checkpoint", "evaluation")
"""Phases that do not count in a step's normal duration."""


class Longest:
    """The two longest times of one kind, in seconds."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._second: float | None = None

    def add(self, seconds: float) -> None:
        """One more was observed."""
        if not 0.0 <= seconds < math.inf:
            return
        if self._first is None or seconds > self._first:
            self._first, self._second = seconds, self._first
        elif self._second is None or seconds > self._second:
            self._second = seconds

    def timeout(self, *, longest_factor: float = 0.0) -> float | None:
        """Five times the second longest, at least the longest times `longest_factor`; None for no history.

        A single observation counts as the second longest.
        """
        if self._first is None:
            return None
        if self._second is None:
            return FACTOR * self._first
        return max(FACTOR * self._second, longest_factor * self._first)


class LearntTimeouts:
    """The timeouts of one rank, and the histories that they are learnt from."""

    def __init__(self) -> None:
        self._steps = Longest()
        self._sections = {phase: Longest() for phase in SECTIONS}
        self._starts = Longest()
        self._skipped = 0
        self._start_up_since: float | None = None
        """During the start-up: end of its latest step, or the start of the process before the first one. None
        afterwards, and if the start was not seen."""
        self._longest_of_start = 0.0
        self._failed_end = math.nan

    def begin_process(self, moment: float) -> None:
        """Another process of the rank began, monotonic."""
        self._start_up_since = moment
        self._longest_of_start = 0.0
        self._skipped = 0

    def step_failed(self, ended: float) -> None:
        """An exception ended the step that ends at this moment: it is not a normal one."""
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
        """A checkpoint or an evaluation took this long."""
        if phase in self._sections:
            self._sections[phase].add(seconds)

    def timeout(self, open_phase: str | None) -> float | None:
        """Longest normal time without progress while the rank is in this phase; None while unknown.

        A section follows a step or a start, and is allowed the time of both.
        """
        starting = self._start_up_since is not None
        own = self._starts.timeout(longest_factor=LONGEST_FACTOR) if starting else self._steps.timeout()
        if open_phase not in self._sections:
            return own or None
        section = self._sections[open_phase].timeout(longest_factor=LONGEST_FACTOR)
        if starting:
            return None if own is None else own + (section or 0.0)
        return None if section is None else section + (own or 0.0)
