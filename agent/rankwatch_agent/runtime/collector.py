"""The contract of a collector: its name, its schedule, and what one run returns, as a whole or by parts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from rankwatch.conventions.metrics import Metric, metric
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit

logger = logging.getLogger(__name__)


class Schedule(NamedTuple):
    """Time between the starts of two runs, and the longest time of one run, in seconds."""

    interval_seconds: float
    deadline_seconds: float


class Series(NamedTuple):
    """One sample: a declared metric, the values of its labels in declared order, and the value."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def sample(name: str, labels: tuple[str, ...], value: float) -> Series:
    """Return a sample of the metric of this name."""
    return Series(metric(name), labels, value)


Wall = Callable[[float], float]
"""Unix time of a monotonic moment."""


class FigureTable:
    """Series of the objects of one class.

    fields: metric -> its field, or the path to it through other objects. A field that is None has no series.
        One that is a dict has a series for each key, which is one more label, or a tuple of them. Fields of
        metrics that end in `_timestamp_seconds` are monotonic moments.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._rows = [
            (metric(name), attrgetter(path), name.endswith("_timestamp_seconds"))
            for name, path in fields.items()
        ]

    def series(self, labels: tuple[str, ...], of: Any, wall: Wall = float) -> Iterator[Series]:
        """Yield the series of one object; `labels` are those that all of them have."""
        for declared, read, is_moment in self._rows:
            value = read(of)
            if value is None:
                continue
            if isinstance(value, dict):
                for key, each in value.items():
                    more = key if type(key) is tuple else (key,)
                    yield Series(declared, (*labels, *more), wall(each) if is_moment else each)
            else:
                yield Series(declared, labels, wall(value) if is_moment else value)


class Exemplar(NamedTuple):
    """A measurement of a histogram that is in a trace."""

    trace: int
    span: int
    value: float
    moment: float
    """Unix time in seconds."""


class Histogram(NamedTuple):
    """One histogram: cumulative counts by upper bound, of which the last is +Inf, and the sum."""

    metric: Metric
    labels: tuple[str, ...]
    buckets: tuple[tuple[float, int], ...]
    sum: float
    exemplars: Mapping[int, Exemplar] = MappingProxyType({})
    """Number of a bucket -> a measurement that fell into it, and into none below."""


@dataclass(frozen=True, slots=True)
class Collection:
    """The result of one run. Immutable, so that any thread may render it."""

    series: Sequence[Series] = ()
    histograms: Sequence[Histogram] = field(default=())
    broken_parts: int | None = None
    """Parts of the source that could not be read while others could; None for a source without parts."""


class Collector(Protocol):
    """A source of metrics with a name and a schedule of its own. Only the supervisor calls `collect`."""

    name: str
    """Value of the label `collector`; lower case, unique."""
    interval_seconds: float
    """Time between the starts of two runs."""
    deadline_seconds: float
    """Longest run. Past it, the series of the collector disappear until it returns."""

    def collect(self) -> Collection:
        """Read the source once.

        Raises NotApplicable if the source does not exist on this machine, CollectError if it cannot be read.
        Any other exception counts as a failure too.
        """
        ...


Part = Callable[[], Iterable[Series | CollectError]]
"""Yields its series, and an error for each piece that it leaves out. It may also raise."""


def collect_parts(collector: str, parts: Iterable[Part], log_limit: LogLimit) -> Collection:
    """Return the series of all readable parts. Broken parts are counted and logged.

    Raises CollectError where a part failed and none has series, NotApplicable where no part exists here.
    """
    series: list[Series] = []
    absent: list[NotApplicable] = []
    failed: list[CollectError] = []
    for part in parts:
        try:
            for each in part():
                if isinstance(each, CollectError):
                    failed.append(each)
                else:
                    series.append(each)
        except NotApplicable as error:
            absent.append(error)
        except CollectError as error:
            failed.append(error)
    if not series and failed:
        raise failed[0]
    if not series:
        raise NotApplicable(str(absent[0]) if absent else f"{collector} has nothing to read")
    for broken in failed:
        if log_limit.allows(str(broken)):
            logger.warning("collector %s skips a broken part: %s", collector, broken)
    return Collection(tuple(series), broken_parts=len(failed))
