"""Work by unit, counted together with the step that did it.

The work of a step is recorded while the step is open, the step itself is counted when it is settled. A rate
over few steps would divide the one by the other and be wrong by a step.
"""

from __future__ import annotations

_NO_STEP = -1
"""Number of what is recorded before any step, and in a run that has none."""
_MAX_HELD_STEPS = 64
"""Steps whose work waits; beyond, the oldest counts at once."""


class WorkTotals:
    """Work of the steps that are settled, and of what lies outside of steps."""

    def __init__(self) -> None:
        self.by_unit: dict[str, float] = {}
        self._held: dict[int, dict[str, float]] = {}
        self._settled = _NO_STEP
        self._of_last_process: dict[str, float] | None = None
        """Work of the step that a process which is gone ended last, while that step is to be settled."""

    def add(self, number: int, unit: str, amount: float) -> None:
        """Work was done in a step, or after the one of this number."""
        if number in (_NO_STEP, self._settled):
            self._count(unit, amount)
            return
        held = self._held.get(number)
        if held is None:
            if len(self._held) == _MAX_HELD_STEPS:
                self._release(next(iter(self._held)))
            held = self._held[number] = {}
        held[unit] = held.get(unit, 0.0) + amount

    def settle(self, number: int) -> None:
        """The step is counted: so is its work, and that of steps before it that left no record."""
        if self._of_last_process is not None:
            self._count_all(self._of_last_process)
            self._of_last_process = None
            return  # its number says nothing about the steps of the present process, which go back
        self._settled = number
        for each in [each for each in self._held if each <= number]:
            self._release(each)

    def begin_process(self, pending: int | None) -> None:
        """Another process takes the rank; work of steps that the last one did not end is done again.

        pending: the step that ended and is still to be settled.
        """
        if pending is not None and self._of_last_process is None:
            self._of_last_process = self._held.pop(pending, {})
        self._held = {}
        self._settled = _NO_STEP

    def _release(self, number: int) -> None:
        self._count_all(self._held.pop(number))

    def _count_all(self, work: dict[str, float]) -> None:
        for unit, amount in work.items():
            self._count(unit, amount)

    def _count(self, unit: str, amount: float) -> None:
        self.by_unit[unit] = self.by_unit.get(unit, 0.0) + amount
