"""Bytes on the bus of a collective, by the formulas of nccl-tests.

Bus bandwidth is comparable between operations and numbers of ranks, and with what the hardware can
do. Source: nccl-tests, doc/PERFORMANCE.md; for gather and scatter, which that page leaves out,
src/gather.cu and src/scatter.cu.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

SMALL, MEDIUM, LARGE = "small", "medium", "large"
MEDIUM_BYTES = 64 << 10
LARGE_BYTES = 1 << 20
"""Below the first a collective costs latency rather than bandwidth; NCCL's protocols change on the way."""


def _all_but_one(ranks: int) -> float:
    return (ranks - 1) / ranks


def _twice_all_but_one(ranks: int) -> float:
    return 2.0 * (ranks - 1) / ranks


def _one(ranks: int) -> float:
    return 1.0


BUS_FACTORS: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "all_reduce": _twice_all_but_one,
        "all_gather": _all_but_one,
        "reduce_scatter": _all_but_one,
        "all_to_all": _all_but_one,
        "gather": _all_but_one,
        "scatter": _all_but_one,
        "broadcast": _one,
        "reduce": _one,
    }
)
"""Operation -> factor for the total size, by the number of ranks. A barrier moves nothing worth telling."""

_INPUT_IS_ONE_SHARE = frozenset({"all_gather", "gather"})
"""Operations of which each rank's input is its share of the total size. (The root alone has an input to a
scatter: it is the total.)"""


def total_bytes(operation: str, input_bytes: int, ranks: int) -> int:
    """The size of nccl-tests, S, from the largest input of a rank."""
    return input_bytes * ranks if operation in _INPUT_IS_ONE_SHARE else input_bytes


def bus_factor(operation: str, ranks: int) -> float | None:
    """What to multiply the total size with; None where it is not known."""
    formula = BUS_FACTORS.get(operation)
    return None if formula is None or ranks < 1 else formula(ranks)


def size_class(total: int) -> str:
    """Size class by total bytes."""
    if total < MEDIUM_BYTES:
        return SMALL
    return MEDIUM if total < LARGE_BYTES else LARGE
