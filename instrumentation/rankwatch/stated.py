"""What a run states about itself: scalars that stay the same.

They are recorded again now and then, so that an agent that starts later knows them, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from rankwatch.errors import UsageError, shown

REPEAT_STEPS = 500
"""Steps after which they are recorded again: far fewer than a ring holds."""


class StatedValues:
    """The values that a run has stated.

    record: takes the name and the value of a scalar.
    """

    def __init__(self, record: Callable[[str, float], None]) -> None:
        self._record = record
        self._values: dict[str, float] = {}
        self._steps_left = 0

    def state(self, name: str, value: float) -> None:
        """From now on this is the value; 0 states none. The next step records it."""
        if value:
            self._values[name], self._steps_left = value, 0

    def after_step(self) -> None:
        """Record the values if they are due."""
        if not self._values:
            return
        self._steps_left -= 1
        if self._steps_left < 0:
            self._steps_left = REPEAT_STEPS
            for name, value in self._values.items():
                self._record(name, value)


def as_amount(name: str, value: object) -> float:
    """A finite number above 0. Raises UsageError."""
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0
    if 0.0 < number <= sys.float_info.max:
        return float(number)
    raise UsageError(f"{name} is {shown(value)}, expected a number above 0")
