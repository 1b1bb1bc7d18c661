"""How long a rank may go without progress: learnt from its own history, never a fixed half hour.

A start-up, a step, a checkpoint and an evaluation have separate histories. The timeout of a kind is five
times the longest observed one, and the first 5 steps of a process (compilation, caches) are not normal steps:
this is the rule of NVIDIA's resiliency extension. Two things differ from it:

- The single longest step is left out, and so is a step that an exception ended: a stall that passed
  would allow five times itself from then on. What comes a second time is normal.
- The start of a process counts as a kind of its own, up to the end of its first 5 steps: a restart
  loads a checkpoint and compiles, which takes longer than any step.
"""

from __future__ import annotations

import math

FACTOR = 5.0
"""Longest observed time -> timeout."""
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

        The only one there is counts in full.
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
        self._last: float | None = None
        """End of the last step of the start-up, at first its begin; None where it is over, or was not seen.
        """
        self._longest_of_start = 0.0
        self._failed_end = math.nan

    def begin_process(self, moment: float) -> None:
        """Another process of the rank began, monotonic."""
        self._last = moment
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
        if self._last is not None and ended <= self._last:
            return  # of the process before
        self._skipped += 1
        if self._skipped > SKIPPED_STEPS:
            self._steps.add(seconds)
            return
        if self._last is None:
            return
        self._longest_of_start = max(self._longest_of_start, ended - self._last)
        self._last = ended
        if self._skipped == SKIPPED_STEPS:
            self._starts.add(self._longest_of_start)
            self._last = None

    def section(self, phase: str, seconds: float) -> None:
        """A checkpoint or an evaluation took this long."""
        if phase in self._sections:
            self._sections[phase].add(seconds)

    def timeout(self, open_phase: str | None) -> float | None:
        """Longest normal time without progress while the rank is in this phase; None while unknown.

        A section follows a step or a start, and is allowed the time of both.
        """
        starting = self._last is not None
        own = self._starts.timeout(longest_factor=LONGEST_FACTOR) if starting else self._steps.timeout()
        if open_phase not in self._sections:
            return own or None
        section = self._sections[open_phase].timeout(longest_factor=LONGEST_FACTOR)
        if starting:
            return None if own is None else own + (section or 0.0)
        return None if section is None else section + (own or 0.0)
