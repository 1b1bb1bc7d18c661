"""One reported step, and the account of what was read and what was left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

COLUMNS = ("loss", "grad_norm", "update_norm", "loss_scale")
"""What a row may hold beside its step."""
_LARGEST_STEP = 2**53
"""Beyond it a number in a file is no step: floats cannot count any more."""


class Row(NamedTuple):
    """One reported step; None where a value is missing. Values may be NaN or infinite."""

    step: int
    loss: float | None = None
    grad_norm: float | None = None
    update_norm: float | None = None
    loss_scale: float | None = None


@dataclass(kw_only=True)
class Intake:
    """Counts of what a file held."""

    rows: int = 0
    """Rows that were judged."""
    losses: int = 0
    """Rows that held a loss."""
    skipped: int = 0
    """Rows without a step, without a number, with text where a number belongs, or too long."""
    repeated: int = 0
    """Rows of the step before them, as several ranks write into one log."""
    restarts: int = 0
    """Times the step went back: the run went on from a checkpoint."""
    truncated: bool = False
    """The compressed file ends in the middle."""


def to_step(text: str) -> int:
    """The number of a step, as `12` or `12.0`; raises ValueError."""
    number = float(text)
    if not 0 <= number <= _LARGEST_STEP or number != int(number):
        raise ValueError(f"{text!r} is no step")
    return int(number)


def to_value(text: str) -> float | None:
    """A number, NaN or infinite; None where there is none; raises ValueError for other text."""
    try:
        return float(text)
    except ValueError:
        if text.strip().lower() not in _MISSING:
            raise
        return None


_MISSING = frozenset({"", "none", "null", "na", "n/a", "-"})
