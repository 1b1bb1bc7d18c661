"""What a part of the benchmarks hands out: rows for a reader, raw samples for a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Row(NamedTuple):
    """One line of a part's table."""

    what: str
    measured: str
    spread: str = ""
    """How far the samples lie apart, so that a reader sees what this machine can resolve."""
    target: str = ""
    met: bool | None = None
    """None where there is no target."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One part, measured."""

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    """Sentences a reader needs to judge the figures."""
    samples: Mapping[str, object] = field(default_factory=dict)
    """Every raw sample, ready for JSON; units are in the names."""


def limited(what: str, value: float, at_most: float, shown: Callable[[float], str], spread: str = "") -> Row:
    """A row with a target: met where the value is at most that."""
    return Row(what, shown(value), spread, f"<= {shown(at_most)}", value <= at_most)
