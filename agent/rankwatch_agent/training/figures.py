"""Makes the series of an object by a table: the metric of each figure, and the field that holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Series

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
