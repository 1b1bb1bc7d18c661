"""How long a rank may go without progress: learnt from its own history, never a fixed half hour.

A step, a checkpoint and an evaluation are separate sections with separate histories. The longest one
seen so far, times 5, is the timeout of its kind; the first 5 steps (compilation, caches) are left
out: the rule of NVIDIA's resiliency extension.
"""

from __future__ import annotations

FACTOR = 5.0
SKIPPED_STEPS = 5
SECTIONS = ("checkpoint", "evaluation")
"""Phases that are no part of a step's normal duration."""


class Progress:
    """What one rank has shown to be normal."""

    def __init__(self) -> None:
        self._steps = 0
        self._longest_step = 0.0
        self._longest: dict[str, float] = {}

    def step(self, seconds: float) -> None:
        """A step took this long, checkpoints and evaluation inside it left out."""
        self._steps += 1
        if self._steps > SKIPPED_STEPS:
            self._longest_step = max(self._longest_step, seconds)

    def section(self, phase: str, seconds: float) -> None:
        """A checkpoint or an evaluation took this long."""
        if phase in SECTIONS:
            self._longest[phase] = max(self._longest.get(phase, 0.0), seconds)

    def timeout(self, open_phase: str | None) -> float | None:
        """Longest normal time without progress while the rank is in this phase; None while unknown."""
        if open_phase in SECTIONS:
            longest = self._longest.get(open_phase)
            return None if longest is None else FACTOR * (longest + self._longest_step)
        return FACTOR * self._longest_step if self._longest_step else None
