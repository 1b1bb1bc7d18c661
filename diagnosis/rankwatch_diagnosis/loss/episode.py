"""Episodes: values that stand out, with the gaps between them, taken as one event."""

from __future__ import annotations

from dataclasses import dataclass

from rankwatch_diagnosis.loss.alarm import Alarm, Kind, Severity

GAP_VALUES = 20
"""So many ordinary values in a row end an episode; an odd value before that belongs to it."""


@dataclass
class Episode:
    """Values that stood out, from the first on. The first value and what was expected are of `step`."""

    step: int
    value: float
    expected: float
    last_step: int
    highest: float
    values: int = 0
    """Values that stood out."""
    confirmed_step: int | None = None
    """Step at which they had been above the threshold for as long as it takes."""
    _in_a_row: int = 0
    _ordinary: int = 0
    _streak: tuple[int, float, float] | None = None
    """Step, value and expectation at the start of the present run of values that stand out."""

    @property
    def over(self) -> bool:
        """Enough ordinary values have followed."""
        return self._ordinary >= GAP_VALUES

    @property
    def odd_now(self) -> bool:
        """The newest value stood out."""
        return self._ordinary == 0

    @property
    def above_now(self) -> bool:
        """The newest value was above the threshold."""
        return self._in_a_row > 0

    def odd(self, step: int, value: float, expected: float, *, above: bool, confirm_after: int) -> None:
        """Take a value that stands out."""
        self._ordinary = 0
        self.values += 1
        self.last_step = step
        self.highest = max(self.highest, value)
        if self._streak is None:
            self._streak = (step, value, expected)
        self._in_a_row = self._in_a_row + 1 if above else 0
        if self._in_a_row >= confirm_after and self.confirmed_step is None:
            self.confirmed_step = step
            # A spike shortly before is not where the divergence began.
            self.step, self.value, self.expected = self._streak

    def ordinary(self) -> None:
        """Take a value that does not stand out."""
        self._ordinary += 1
        self._in_a_row = 0
        self._streak = None

    def alarm(self, kind: Kind, severity: Severity, *, recovered: bool) -> Alarm:
        """The alarm of it, now that it is over."""
        return Alarm(
            step=self.step,
            kind=kind,
            value=self.value,
            expected=self.expected,
            severity=severity,
            last_step=self.last_step,
            values=self.values,
            highest=self.highest,
            confirmed_step=self.confirmed_step,
            recovered=recovered,
        )


def begin(step: int, value: float, expected: float) -> Episode:
    """An episode whose first value is about to be taken."""
    return Episode(step=step, value=value, expected=expected, last_step=step, highest=value)
