"""Watches how long Prometheus takes to evaluate its rules while a run has a fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import NamedTuple

from .rules_prometheus import Evaluation, Server

_EVALUATIONS = 6
"""Least number of evaluations of the groups of each scrape for one fault."""


class Part(NamedTuple):
    """Evaluations during one fault."""

    groups: Mapping[str, list[float]]
    """Seconds of each evaluation, by group."""
    intervals: Mapping[str, float]
    """Seconds from one evaluation to the next, by group."""
    rules: Mapping[str, list[float]]
    """The same by record or alert."""
    named: Mapping[str, list[str]]
    """Ranks by alert, at the end."""
    failed: tuple[str, ...]
    """Errors of rules."""
    cpu_seconds: float
    """CPU time of Prometheus in one interval, scrapes included."""

    def median(self, group: str) -> float:
        """Median seconds of a group."""
        return median(self.groups[group])

    def in_interval(
        self, groups: Iterable[str], interval_seconds: float, of: Callable[[list[float]], float]
    ) -> float:
        """Seconds of these groups in one interval, where `of` picks one of each group's: a group that is
        evaluated in each fourth interval counts a quarter."""
        return sum(of(self.groups[each]) * interval_seconds / self.intervals[each] for each in groups)

    def slowest_groups(self, most: int) -> list[tuple[str, list[float]]]:
        """Groups and their seconds, the slowest first."""
        return sorted(self.groups.items(), key=lambda each: -median(each[1]))[:most]

    def slowest_rules(self, most: int) -> list[tuple[str, float]]:
        """Rules and their median seconds, the slowest first."""
        seconds = [(name, median(each)) for name, each in self.rules.items()]
        return sorted(seconds, key=lambda each: -each[1])[:most]


class Watch:
    """Collects each evaluation once. `interval_seconds` is the interval of the groups."""

    def __init__(self, server: Server, *, interval_seconds: float) -> None:
        self._server = server
        self._interval_seconds = interval_seconds
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the watch began."""
        return time.monotonic() - self._began

    def until(self, alert: str, at_most: float, counts: Callable[[], bool]) -> Part:
        """Watch until the alert fires and enough evaluations were seen, or for `at_most` seconds.

        Evaluations before `counts` first returns true are left out. Raises BenchError.
        """
        deadline = self.seconds + at_most
        found: dict[tuple[str, str], Evaluation] = {}
        began = False
        since, used = self.seconds, 0.0
        while True:
            last = {(each.group, each.moment): each for each in self._server.evaluations()}
            if began:
                found |= last
            else:
                began = counts()
                before = last
                since, used = self.seconds, self._server.cpu_seconds()
            named = self._server.firing()
            seen = _by_group([each for key, each in found.items() if key not in before])
            # Some groups are evaluated once a minute, or in five.
            all_seen = len(seen) == len({group for group, _ in last})
            enough = all_seen and max(map(len, seen.values())) >= _EVALUATIONS
            if (enough and alert in named) or self.seconds > deadline:
                intervals = (self.seconds - since) / self._interval_seconds
                return _part(seen, named, (self._server.cpu_seconds() - used) / max(1.0, intervals))
            time.sleep(self._interval_seconds / 5)


def _by_group(evaluations: list[Evaluation]) -> dict[str, list[Evaluation]]:
    groups: dict[str, list[Evaluation]] = {}
    for each in evaluations:
        groups.setdefault(each.group, []).append(each)
    return groups


def _part(seen: Mapping[str, list[Evaluation]], named: Mapping[str, set[str]], cpu_seconds: float) -> Part:
    rules: dict[str, list[float]] = {}
    for evaluations in seen.values():
        for each in evaluations:
            for name, seconds in each.rules.items():
                rules.setdefault(name, []).append(seconds)
    return Part(
        groups={group: [each.seconds for each in evaluations] for group, evaluations in seen.items()},
        intervals={group: evaluations[0].interval for group, evaluations in seen.items()},
        rules=rules,
        named={alert: sorted(ranks) for alert, ranks in named.items()},
        failed=tuple({error for each in seen.values() for one in each for error in one.failed}),
        cpu_seconds=cpu_seconds,
    )
