"""How children of the cost loops are summarised."""

from __future__ import annotations

from typing import Any

import pytest

from bench.result import BenchError
from bench.zero_code_cost import CASES, _ways, interval


def _child(way: str, recorded: int) -> dict[str, Any]:
    return {
        "way": way, "cpu_ns": [4000, 1000, 2000, 9000], "wall_ns": [5000], "once_ns": 0.0, "others": 0.0,
        "recorded": recorded,
    }  # fmt: skip


def test_low_quantile() -> None:
    """A busy machine lengthens some steps of a child; the others stand for it."""
    assert _ways([_child("bare", 0)], CASES[0])["bare"].cpu == [1e-6]


def test_unrecorded_steps() -> None:
    """A recording that misses steps costs little, so it is no result."""
    with pytest.raises(BenchError, match="3 steps recorded of"):
        _ways([_child("zero-code", 3)], CASES[0])


def test_interval() -> None:
    """The interval of the median holds it, and not a single far sample."""
    low, high = interval([1.0, 2.0, 3.0, 2.0, 1.0, 3.0, 2.0, 1000.0])
    assert 1.0 <= low <= 2.0 <= high <= 3.0
