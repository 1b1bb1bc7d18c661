"""What a collector is and what it returns: the two-line contract every source follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rankwatch.conventions import Metric


class Schedule(NamedTuple):
    """Time between the starts of two runs, and the longest time of one run, in seconds."""

    interval_seconds: float
    deadline_seconds: float


class Series(NamedTuple):
    """One sample: a declared metric, the values of its labels in declared order, and the value."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


class Histogram(NamedTuple):
    """One histogram: cumulative counts by upper bound (the last bound is +Inf), and the sum."""

    metric: Metric
    labels: tuple[str, ...]
    buckets: tuple[tuple[float, int], ...]
    sum: float


@dataclass(frozen=True, slots=True)
class Collection:
    """Everything one run of a collector found; immutable, so that any thread may render it."""

    series: Sequence[Series] = ()
    histograms: Sequence[Histogram] = field(default=())
    broken_parts: int | None = None
    """Parts of the source that could not be read while others were; None where it is not made of parts."""


class Collector(Protocol):
    """A source: one file, one name, its own schedule. Only the supervisor calls `collect`."""

    name: str
    """Value of the `collector` label; lower case, unique."""
    interval_seconds: float
    """Time between the starts of two runs."""
    deadline_seconds: float
    """Longest run; past it the collector's series disappear until it returns."""

    def collect(self) -> Collection:
        """Read the source once.

        Raises NotApplicable where the source does not exist here, CollectError where it cannot be
        read; whatever else it raises counts as failed too.
        """
        ...
