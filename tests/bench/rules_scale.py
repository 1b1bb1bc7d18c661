"""`python -m tests.bench.rules_scale`: evaluation time of the generated rules by size of the job.

A real Prometheus scrapes the pages of a job of N ranks (8 stages of N/8 replicas, an agent for each 8
ranks), or of several such runs that have N ranks together, and evaluates all rules.
First one rank is slow, then another rank sleeps and all others wait for it;
the right rank must be named each time. Up to 1,024 ranks, all times of the rules and the scrape interval are
divided by 3, so that each window has as many scrapes as by default.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_alerts import Alert, RuleConfig

from .processes import exit_on_signals, temporary_directory
from .result import Result, Row, as_markdown, limited
from .rules_pages import NODE_RANKS, Job
from .rules_prometheus import Evaluation, Server, pages, server

RANKS = (256, 1_024, 2_048, 4_096)
QUICK_RANKS, TIME_SCALE = 1_024, 3.0
"""Times are divided by TIME_SCALE up to QUICK_RANKS. Small machines need the whole interval for more."""
INTERVAL_SECONDS = RuleConfig().scrape_interval_seconds
HEADROOM = 3.0
"""A group must take less than its interval divided by this."""
ALL_GROUPS_SECONDS = 3.0
"""What all groups together may take, of 15 s."""
FORMULA_SHARE = 0.05
"""How far the published number of series and memory may be off."""
_CARDINALITY = Path(__file__).parents[2] / "docs" / "cardinality.md"
_PUBLISHED = re.compile(r"(\d+) series for each rank and (\d+) for each node.*?([\d.]+) KiB", re.DOTALL)
_ANY_CLOCK_SECONDS = 60.0
_SPARE_SECONDS = 300.0
"""Longest wait beyond the shortest time to the alert."""
_GROUPS_SHOWN, _RULES_SHOWN = 3, 5


class Size(NamedTuple):
    """The measurements of one job."""

    ranks: int
    """Of all runs together."""
    runs: int
    shards: int
    """Servers that share the runs, beside a fleet server, of which one was measured; 1 for a single one."""
    interval_seconds: float
    """Between two scrapes."""
    slow: Part
    stalled: Part
    right_ranks_named: bool
    """True if each of both ranks was named by its alert, and no other rank."""
    scraped: int
    """Samples in one scrape of all pages, before the stall."""
    series: int
    """At the same moment."""
    peak_bytes: int
    missed: int
    """Evaluations skipped because the previous one was still running."""


def measure_size(ranks: int, runs: int = 1, shards: int = 1, only: str = "") -> Size:
    """Measure runs that have so many ranks together, which takes 4 to 20 minutes. Raises BenchError."""
    job = Job.of(ranks // runs)
    # Many a machine of tests has no time daemon, and 2,048 alerts on clocks are another measurement.
    config = replace(RuleConfig(), clock_error_seconds=_ANY_CLOCK_SECONDS)
    config = config.scaled(TIME_SCALE if ranks <= QUICK_RANKS else 1.0)
    window, stalled_expression = config.step_window_seconds, "run:rankwatch_stall_seconds:max"
    with (
        temporary_directory() as name,
        pages(Path(name), ranks, runs) as address,
        server(Path(name, "server"), config, address, runs * job.nodes, shards, only) as prometheus,
    ):
        watch = Watch(prometheus, interval_seconds=config.scrape_interval_seconds)
        straggler_seconds = window + config.straggler_for_seconds + _SPARE_SECONDS
        slow = watch.until(Alert.RUN_SLOW, straggler_seconds, lambda: watch.seconds > window)
        scraped, series = int(prometheus.value("sum(scrape_samples_scraped)")), prometheus.series()
        with urllib.request.urlopen(f"http://{address}/stall", data=b"", timeout=60):
            pass
        stall_seconds = config.stall_floor_seconds + config.stall_for_seconds + _SPARE_SECONDS
        stalled = watch.until(
            Alert.RUN_STALLED, stall_seconds, lambda: prometheus.value(stalled_expression) > 0
        )
        return Size(
            ranks=ranks,
            runs=runs,
            shards=shards,
            interval_seconds=config.scrape_interval_seconds,
            slow=slow,
            stalled=stalled,
            right_ranks_named=slow.named == {Alert.RUN_SLOW: [str(job.slow_rank)]}
            and stalled.named.get(Alert.RUN_STALLED) == [str(job.asleep_rank)],
            scraped=scraped,
            series=series,
            peak_bytes=prometheus.peak_bytes(),
            missed=prometheus.missed(),
        )


def result(size: Size) -> Result:
    """The table: the slowest groups, the size of Prometheus, and the ranks named."""
    return Result(
        title="Rules by size of the job",
        rows=tuple(_rows(size)),
        notes=(
            "A group's time is the median by the clock; the target is its default interval of"
            f" {INTERVAL_SECONDS:g} s over {HEADROOM:g}. The pages are made on the same machine, and"
            " everything else that runs on it counts too.",
        ),
    )


def _rows(size: Size) -> list[Row]:
    ranks = f"{size.ranks:,} ranks" + (f" of {size.runs} runs" if size.runs > 1 else "")
    ranks += f" in one of {size.shards} shards" if size.shards > 1 else ""
    rows = []
    for what, part in (("a slow rank", size.slow), ("a stall", size.stalled)):
        for group, seconds in part.slowest_groups(_GROUPS_SHOWN):
            middle, most = part.median(group), max(seconds)
            rows.append(limited(
                f"{ranks}, {what}: {group}", middle, INTERVAL_SECONDS / HEADROOM, _seconds,
                f"{_seconds(min(seconds))} to {_seconds(most)}, {len(seconds)} evaluations",
            ))  # fmt: skip
        best = _seconds(part.in_interval(size.interval_seconds, min))
        at_once = _seconds(sum(map(part.median, part.groups)))
        rows.append(limited(
            f"{ranks}, {what}: all groups together", part.in_interval(size.interval_seconds, median),
            ALL_GROUPS_SECONDS, _seconds,
            f"in one interval, by the medians; by the best of each {best}; by the medians {at_once} if "
            "those of a minute or five are due as well",
        ))  # fmt: skip
        rows.append(Row(f"{ranks}, {what}: CPU in one interval", _seconds(part.cpu_seconds)))
        rules = ", ".join(f"{name} {_seconds(taken)}" for name, taken in part.slowest_rules(_RULES_SHOWN))
        rows.append(Row(f"{ranks}, {what}: slowest rules", rules))
    failed = sorted({*size.slow.failed, *size.stalled.failed})
    rows.append(Row(f"{ranks}: rules that failed", ", ".join(failed) or "none", met=not failed))
    held = f"{size.series:,} series, {size.peak_bytes / 2**20:,.0f} MiB at the peak"
    rows.append(Row(f"{ranks}: Prometheus", held, f"{size.scraped:,} samples a scrape, {size.missed} missed"))
    if size.shards == 1 and size.ranks // size.runs > AgentConfig().max_single_ranks:
        rows += _against_published(ranks, size)
    named = f"{_named(size.slow)}; {_named(size.stalled)}"
    rows.append(Row(f"{ranks}: named", named, target="the faulty ones", met=size.right_ranks_named))
    return rows


def _against_published(ranks: str, size: Size) -> list[Row]:
    """How far the published formula is off."""
    of_rank, of_node, kibibytes = map(float, _PUBLISHED.search(_CARDINALITY.read_text()).groups())  # type: ignore[union-attr]
    series = of_rank * size.ranks + of_node * size.ranks / NODE_RANKS
    memory = series * kibibytes * 2**10
    return [
        limited(
            f"{ranks}: the published formula for {what} is off by", abs(published / found - 1), FORMULA_SHARE,
            "{:.1%}".format, f"{published / unit:,.1f} {name} by the formula",
        )
        for what, published, found, unit, name in (
            ("series", series, size.series, 1e6, "million"),
            ("memory", memory, size.peak_bytes, 2**30, "GiB"),
        )
    ]  # fmt: skip


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


def _named(part: Part) -> str:
    return ", ".join(f"{alert} {'+'.join(ranks)}".strip() for alert, ranks in part.named.items()) or "none"


def main(arguments: Sequence[str]) -> int:
    """Measure the given sizes and print a table of each. Exit status 0 whatever the result is."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rules_scale", description=__doc__)
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=list(RANKS), help="a multiple of 64 from 128 on"
    )
    parser.add_argument("--runs", type=int, default=1, help="runs that have these ranks together")
    parser.add_argument("--shards", type=int, default=1, help="servers that share the runs; needs --only")
    parser.add_argument("--only", default="", help="which of these to measure: shard-0, fleet")
    given = parser.parse_args(arguments)
    if (given.shards > 1) != bool(given.only):
        parser.error("--shards and --only belong together")
    exit_on_signals()
    for ranks in given.ranks:
        print(as_markdown(result(measure_size(ranks, given.runs, given.shards, given.only))), flush=True)
    return 0


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

    def in_interval(self, interval_seconds: float, of: Callable[[list[float]], float]) -> float:
        """Seconds of all groups in one interval, where `of` picks one of each group's: a group that is
        evaluated in each fourth interval counts a quarter."""
        return sum(
            of(seconds) * interval_seconds / self.intervals[group] for group, seconds in self.groups.items()
        )

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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
