"""Samples at the scrapes of a target in promtool's notation, with the marks of series that end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]
ABSENT = -np.inf
"""In place of a sample that the target does not export."""
_EQUAL = 1e-9
"""Slopes that differ by less than this share of the value are one line."""


class Target(NamedTuple):
    """What Prometheus gets from one agent; a flag for each scrape of the day."""

    scraped: Flags
    marked: Flags
    """A missing sample gets a staleness marker: not while Prometheus itself is away."""
    starts: tuple[int, ...]
    """Scrapes that are the first ones of a new process of the agent."""


def received(values: Values, first: int, target: Target) -> Values:
    """Of the values of a series from scrape `first` on, those that are scraped."""
    return np.where(target.scraped[first : first + len(values)], values, ABSENT)


def reset(values: Values, first: int, target: Target) -> Values:
    """A counter that begins at 0 with each process of its agent."""
    for start in target.starts:
        at = start - first
        if 0 < at < len(values):
            before = values[at - 1]
            values = np.concatenate([values[:at], values[at:] - (before if np.isfinite(before) else 0.0)])
    return values


def notation(whole: Values, target: Target) -> str:
    """The series of a whole day. One that ends is marked at the next scrape."""
    present = whole != ABSENT
    bounds = [0, *(np.flatnonzero(np.diff(present)) + 1).tolist(), len(whole)]
    known, tokens = False, list[str]()
    for start, end in pairwise(bounds):
        if present[start]:
            tokens.extend(_lines(whole[start:end]))
            known = True
        elif known and target.marked[start:end].any():
            mark = start + int(np.argmax(target.marked[start:end]))
            tokens.extend([*_omitted(mark - start), "stale", *_omitted(end - mark - 1)])
        else:
            tokens.extend(_omitted(end - start))
    return " ".join(tokens)


def _omitted(count: int) -> list[str]:
    return [f"_x{count}"] if count else []


def _lines(values: Values) -> Iterator[str]:
    """Straight lines, one behind the other."""
    slopes = np.diff(values)
    bends = np.flatnonzero(~(np.abs(np.diff(slopes)) <= _EQUAL * np.maximum(1.0, np.abs(values[1:-1]))))
    ends = [*(bends + 1).tolist(), len(values) - 1]
    at = 0
    while at < len(values):
        end = ends[bisect_left(ends, at + 1)] if at < len(slopes) and np.isfinite(slopes[at]) else at
        if end == at:
            yield f"{values[at]:.15g}"
        elif slopes[at] == 0:
            yield f"{values[at]:.15g}x{end - at}"
        else:
            yield f"{values[at]:.15g}{slopes[at]:+.12g}x{end - at}"
        at = end + 1
