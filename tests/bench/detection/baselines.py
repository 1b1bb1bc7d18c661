"""Rules of other tools, applied to the whole table. They name ranks without causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.table import Kind, OperationTable

Floats = NDArray[np.float64]

SCORE = 0.75
"""Threshold of NVIDIA's resiliency extension, in its code."""
DEVIATIONS = 3.0
MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution from its median absolute deviation."""


def baseline_names(table: OperationTable) -> Mapping[str, tuple[int, ...]]:
    """The ranks that each rule names."""
    ranks, place = np.unique(table.rank, return_inverse=True)
    steps = len(np.unique(table.step))

    def of_each(*kinds: Kind) -> Floats:
        rows = np.isin(table.kind, kinds) if kinds else slice(None)
        total = np.bincount(place[rows], table.duration_seconds[rows], len(ranks))
        mean: Floats = total / steps
        return mean

    seconds = _Seconds(whole=of_each(), compute=of_each(Kind.COMPUTE), waiting=of_each(Kind.COMMUNICATION))
    return {name: tuple(int(rank) for rank in ranks[rule(seconds)]) for name, rule in RULES.items()}


class _Seconds:
    """Mean seconds in a step, by rank."""

    def __init__(self, *, whole: Floats, compute: Floats, waiting: Floats) -> None:
        self.whole, self.compute, self.waiting = whole, compute, waiting


def _slowest_step(seconds: _Seconds) -> NDArray[np.intp]:
    return np.array([np.argmax(seconds.whole)])


def _ratio_to_fastest(seconds: _Seconds) -> NDArray[np.intp]:
    return np.flatnonzero(seconds.compute.min() / seconds.compute < SCORE)


def _median_and_deviations(seconds: _Seconds) -> NDArray[np.intp]:
    middle = np.median(seconds.compute)
    deviation = MAD_TO_SIGMA * np.median(np.abs(seconds.compute - middle))
    return np.flatnonzero(seconds.compute > middle + DEVIATIONS * deviation)


def _shortest_wait(seconds: _Seconds) -> NDArray[np.intp]:
    return np.array([np.argmin(seconds.waiting)])


RULES: Mapping[str, Callable[[_Seconds], NDArray[np.intp]]] = MappingProxyType(
    {
        "slowest step": _slowest_step,
        "ratio to the fastest below 0.75": _ratio_to_fastest,
        "median + 3 MAD": _median_and_deviations,
        "shortest wait of the job": _shortest_wait,
    }
)
