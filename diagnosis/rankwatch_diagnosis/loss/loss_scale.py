"""Collapse of the loss scale: a scaler that halves again and again finds only overflow."""

from __future__ import annotations

import math
from collections.abc import Callable

from rankwatch_diagnosis.loss.alarm import Alarm, Kind, Severity

COLLAPSE_RATIO = 1 / 16
"""Four halvings from where it had held: a scaler that is well halves once and holds."""
SMALLEST_SCALE = 1.0
"""Below it gradients are made smaller instead of larger: no number format gains by that."""
HOLD_VALUES = 50
"""So many values without a halving end a collapse. As many must have been seen, since the start of the
process, before one counts: a scaler begins too high and finds its place by halving."""


class LossScaleJudge:
    """Takes the loss scales in their order and hands out each collapse."""

    def __init__(self, emit: Callable[[Alarm], None]) -> None:
        self._emit = emit
        self._begin()

    def _begin(self) -> None:
        self._last = math.nan
        self._held = 0
        """Values since the last halving."""
        self._settled = False
        self._first: tuple[int, float, float] | None = None
        """Step, scale and the scale before, at the first halving."""
        self._last_step = 0
        self._halvings = 0

    def take(self, step: int, value: float) -> None:
        """Take the scale of a step; one that is no positive number tells nothing."""
        if not 0.0 < value < math.inf:
            return
        fell = value < self._last
        before, self._last = self._last, value
        self._held = 0 if fell else self._held + 1
        if fell and self._settled:
            if self._first is None:
                self._first = (step, value, before)
            self._last_step, self._halvings = step, self._halvings + 1
        if self._held >= HOLD_VALUES:
            self._conclude(value, recovered=True)
            self._settled = True

    def end_process(self) -> None:
        """The file ends, or the run goes on from an earlier step."""
        self._conclude(self._last, recovered=False)
        self._begin()

    def _conclude(self, scale: float, *, recovered: bool) -> None:
        first, self._first = self._first, None
        halvings, self._halvings = self._halvings, 0
        if first is None:
            return
        step, value, before = first
        if scale > before * COLLAPSE_RATIO:
            return
        self._emit(
            Alarm(
                step=step,
                kind=Kind.LOSS_SCALE_COLLAPSE,
                value=value,
                expected=before,
                severity=Severity.CRITICAL if scale < SMALLEST_SCALE else Severity.WARNING,
                last_step=self._last_step,
                values=halvings,
                highest=scale,
                recovered=recovered and scale >= SMALLEST_SCALE,
            )
        )
