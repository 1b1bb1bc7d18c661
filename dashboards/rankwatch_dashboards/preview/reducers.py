"""Many values to one, as Grafana's reducers (`calcs`) do it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

REDUCER_NAMES = {
    "lastNotNull": "Last *",
    "last": "Last",
    "firstNotNull": "First *",
    "first": "First",
    "min": "Min",
    "max": "Max",
    "mean": "Mean",
    "median": "Median",
    "sum": "Total",
    "count": "Count",
    "range": "Range",
    "delta": "Delta",
    "diff": "Difference",
}
"""What legends and columns call them."""


def reduced(name: str, values: Sequence[Any]) -> Any:
    """The value of a reducer over values with gaps (None); None where nothing is left."""
    if name in ("last", "first"):
        return (values[-1] if name == "last" else values[0]) if values else None
    held = [each for each in values if each is not None]
    if name not in ("lastNotNull", "firstNotNull", "count"):
        held = [each for each in held if isinstance(each, int | float) and not math.isnan(each)]
    return _REDUCERS.get(name, _REDUCERS["lastNotNull"])(held) if held else None


_REDUCERS: dict[str, Callable[[list[Any]], Any]] = {
    "lastNotNull": lambda held: held[-1],
    "firstNotNull": lambda held: held[0],
    "min": min,
    "max": max,
    "mean": lambda held: sum(held) / len(held),
    "median": lambda held: sorted(held)[len(held) // 2],
    "sum": sum,
    "count": lambda held: float(len(held)),
    "range": lambda held: max(held) - min(held),
    "delta": lambda held: held[-1] - held[0],
    "diff": lambda held: held[-1] - held[0],
}
