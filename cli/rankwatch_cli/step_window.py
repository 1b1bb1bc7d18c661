"""`--steps A:B`: a window of step numbers, as users give it."""

from __future__ import annotations

import re
from typing import NamedTuple

from rankwatch_agent.runtime.errors import UserError

HELP = (
    "from step A up to, but not including, step B, as Python slices: 100:200, 100:, :200; "
    "--steps=-50: takes the newest 50; N alone is one step (default: all)"
)
_WINDOW = re.compile(r"(-?\d{1,18})?:(-?\d{1,18})?")
_STEP = re.compile(r"-?\d{1,18}")


class Window(NamedTuple):
    """Step numbers as a user gives them; negative ones count from behind the newest step."""

    first: int | None
    end: int | None

    def of(self, oldest: int, newest: int) -> range:
        """The steps meant, where these are the oldest and the newest step."""
        first, end = (
            edge if each is None else each + newest + 1 if each < 0 else each
            for each, edge in zip(self, (oldest, newest + 1), strict=True)
        )
        return range(max(0, first), end)


def parse_window(text: str) -> Window:
    """Raises UserError for anything but A:B, A:, :B, : and N."""
    if _STEP.fullmatch(text):
        return Window(int(text), None if int(text) == -1 else int(text) + 1)
    match = _WINDOW.fullmatch(text)
    if match is not None:
        first, end = (None if each is None else int(each) for each in match.groups())
        if first is None or end is None or (first < 0) != (end < 0) or first < end:
            return Window(first, end)
    raise UserError(f"--steps is {text!r}, expected A:B with A below B, such as 100:200 for steps 100 to 199")
