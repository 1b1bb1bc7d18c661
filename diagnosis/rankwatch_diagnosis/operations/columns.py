"""The columns of a file of operations: which must be there, which may, and what a missing one means."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from rankwatch_agent.runtime.errors import UserError

_NAMES = pa.dictionary(pa.int32(), pa.string())
# pandas writes a column of whole numbers with a gap as 3.0, so they are read as what may be whole.
_WHOLE = pa.float64()

REQUIRED: dict[str, pa.DataType] = {
    "step": _WHOLE,
    "rank": _WHOLE,
    "operation": _NAMES,
    "kind": _NAMES,
    "start_seconds": pa.float64(),
    "duration_seconds": pa.float64(),
}
OPTIONAL: dict[str, pa.DataType] = {
    "stage": _WHOLE,
    "replica": _WHOLE,
    "microbatch": _WHOLE,
    "group": _NAMES,
    "work": pa.float64(),
}
"""Missing: 0, no group, and work unknown."""
ALL = REQUIRED | OPTIONAL
WHOLE = frozenset(("step", "rank", "stage", "replica", "microbatch"))
"""Whole numbers, read as floats."""


def check(found: Iterable[str], path: Path) -> None:
    """Raises UserError for a required column that is missing and for one that comes twice."""
    names = list(found)
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise UserError(
            f"{path}: column {', '.join(missing)} is missing; expected {', '.join(REQUIRED)}"
            f" and optionally {', '.join(OPTIONAL)}"
        )
    twice = [name for name in ALL if names.count(name) > 1]
    if twice:
        raise UserError(f"{path}: column {', '.join(twice)} comes twice")
