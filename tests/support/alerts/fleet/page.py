"""Where the series of a day are written: the scrapes of each agent, and the series that rules read.

What of agents and of Prometheus is modelled, and from what source:

- Names and labels are those of the recorded agents (`tests/support/recorded`); a test compares them.
- A rank that ended is exported for an hour more with its last values and its final state, without means of
  recent steps, fingerprints and GPU (`retention_seconds` and `ENDED_STATES` in `rankwatch_agent.training`).
  Then its series end. How an attempt ended is known 20 s after its last rank on the node (`SETTLE_SECONDS`).
- Counters begin at 0 with each process of an agent, but for those that it keeps in files: attempts and
  goodput. Counters of hardware are those of the driver, and go on.
- A failed scrape ends all series of the agent by staleness markers, and sets `up` to 0. While Prometheus is
  away there are neither samples nor markers. Rules are evaluated all the same, as by a ruler that goes on.
- A machine that is gone gives no answer to scrapes, and its ranks are forgotten.
- Each rank has its own speed within 2 %, and means vary by 0.4 % every five minutes. Losses fall, with noise.
  Real runs vary more: this model cannot show how often noise alone raises an alert on pace or on learning.
- Not modelled: collectors that fail, errors of networks and RDMA, budgets and deadlines, pipelines, runs of
  more ranks than `max_single_ranks`, two replicas of Prometheus.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from support.alerts.fleet.day import Day, Node
from support.alerts.replay import sample_head

CLUSTER = "c"
_RESTART_SECONDS = (10.0, 40.0)
"""An agent is away so long when it is rolled out."""


@dataclass(kw_only=True)
class Pages:
    """Takes the series of all agents.

    markers: False where the end of a series is not marked, as behind remote write.
    wanted: names of metrics that are kept.
    """

    day: Day
    interval: int
    wanted: Collection[str]
    markers: bool = True
    series: list[dict[str, str]] = field(default_factory=list)
    targets: dict[str, Target] = field(default_factory=dict)
    _open: dict[str, tuple[Target, list[tuple[int, Values]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.day.seed + 1_000)
        self.times: Values = np.arange(0, self.day.seconds + 1, self.interval, dtype=np.float64)
        self.targets = {name: self._target(node, random) for name, node in self.day.nodes.items()}

    def _target(self, node: Node, random: np.random.Generator) -> Target:
        times = self.times
        failed = random.random(len(times)) < self.day.missed_scrapes
        starts = []
        for restart in node.restarts:
            back = restart + random.uniform(*_RESTART_SECONDS)
            failed |= (times >= restart) & (times < back)
            starts.append(back)
        for begin, end in node.down:
            failed |= (times >= begin) & (times < end)
            starts.append(end)
        if self.day.cut_off is not None:
            failed |= (times >= self.day.cut_off[0]) & (times < self.day.cut_off[1])
        away = self.away
        self._add_up(node.name, failed, away)
        marked = failed & ~away if self.markers else np.zeros_like(failed)
        scrapes = ~failed & ~away
        marked |= scrapes & self.markers
        return Target(scrapes, marked, tuple(self.first(start) for start in starts))

    @property
    def away(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Scrapes that Prometheus does not make, because it starts again."""
        if self.day.server_gap is None:
            return np.zeros(len(self.times), dtype=np.bool_)
        return (self.times >= self.day.server_gap[0]) & (self.times < self.day.server_gap[1])

    def _add_up(self, node: str, failed: np.ndarray[tuple[int], np.dtype[np.bool_]], away: object) -> None:
        """Prometheus writes `up` itself, whether the scrape succeeds or not."""
        server = Target(~self.away, np.zeros(len(self.times), dtype=np.bool_), ())
        for name, value in (
            ("up", np.where(failed, 0.0, 1.0)),
            ("scrape_duration_seconds", np.where(failed, 10.0, 0.05)),
        ):
            labels = {"cluster": CLUSTER, "job": "rankwatch", "instance": f"{node}:9477"}
            self._keep(name, labels, received(value, 0, server), 0, server)

    def first(self, moment: float) -> int:
        """The first scrape at or after a moment."""
        return int(np.searchsorted(self.times, moment))

    def add(self, node: str, name: str, labels: Mapping[str, str], first: int, values: Values) -> None:
        """Add a series of the agent of a node, of which `values` are those from scrape `first` on."""
        if name in self.wanted and len(values):
            placed = {"cluster": CLUSTER, "node": node, "job": "rankwatch", "instance": f"{node}:9477"}
            placed.update({label: value for label, value in labels.items() if value})
            target = self.targets[node]
            self._keep(name, placed, received(values, first, target), first, target)

    def count(self, node: str, name: str, labels: Mapping[str, str], first: int, values: Values) -> None:
        """Likewise a counter, which begins anew with each process of the agent."""
        if name in self.wanted:
            self.add(node, name, labels, first, reset(values, first, self.targets[node]))

    def _keep(self, name: str, labels: Mapping[str, str], values: Values, first: int, target: Target) -> None:
        if name in self.wanted and (values != ABSENT).any():
            self._open.setdefault(sample_head(name, labels), (target, []))[1].append((first, values))

    def flush(self) -> None:
        """Write the series that were added since the last call. Parts of the same series become one."""
        for head, (target, parts) in self._open.items():
            whole = np.full(len(self.times), ABSENT)
            for first, values in parts:
                whole[first : first + len(values)] = values
            self.series.append({"series": head, "values": notation(whole, target)})
        self._open.clear()


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
