"""The cases of the rule tests as scenarios that go on: every alert with the series that make it fire.

A scenario is one case up to the moment at which its alert fires. From then on nothing changes: counters grow
as they did, gauges stay, and what was absent stays absent. So whatever an alert does afterwards is caused by
what a test does to the series: a gap, an agent that restarts, another address.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from rankwatch.conventions.metrics import METRICS, Kind
from rankwatch_alerts import Alert
from rankwatch_alerts.rules import reason_of
from support.alerts.rule_test import CASES, cases_in, seconds_in

STEP_SECONDS = 15
"""Between two samples of most cases; those of windows of days have their own."""
STALE = "stale"
"""A sample that says that the series has ended, as Prometheus writes it after a failed scrape."""

Sample = float | str | None
Key = tuple[str, str]
"""Alert, and what tells its rules apart: label `reason` or `cause`."""

_NUMBER = r"(?:[\d.]+(?:e[-+]?\d+)?|Inf|NaN)"
_TOKEN = re.compile(rf"(?P<start>[-+]?{_NUMBER})(?P<slope>[-+]{_NUMBER})?(?:x(?P<times>\d+))?")
_SERIES = re.compile(r'(\w+)=(?:"([^"]*)"|\'([^\']*)\')')
_WHILE_SEEN = (Alert.RUN_SLOW, Alert.LOSS_DIVERGING)
"""Alerts on what lasts, as long as the ranks of the run are seen."""
_OF_RANK = ("cluster", "run", "rank", "node")
_RESET = frozenset(each.name for each in METRICS if each.kind is Kind.COUNTER)


class TimeSeries(NamedTuple):
    """One series, with a sample for each step from the beginning of the case."""

    name: str
    labels: Mapping[str, str]
    samples: tuple[Sample, ...]

    @property
    def of_agent(self) -> bool:
        """True if an agent exports it; else Prometheus itself makes it."""
        return self.name.startswith("rankwatch_")

    @property
    def counts(self) -> bool:
        """True for a counter, which begins anew with its agent."""
        return self.name in _RESET


class Scenario(NamedTuple):
    """An alert, and the series that make it fire."""

    key: Key
    labels: Mapping[str, str]
    """Of the alert, without its name."""
    step_seconds: int
    """Between two samples, and between two evaluations."""
    fires: int
    """Step at which it first fires."""
    series: tuple[TimeSeries, ...]


def key_of(alert: str, labels: Mapping[str, str]) -> Key:
    """What tells rules apart that raise the same alert."""
    return alert, reason_of(labels)


@cache
def scenarios(steps: int) -> Mapping[Key, Scenario]:
    """For each rule the case that says best when it fires, continued to so many steps after that."""
    found: dict[Key, Scenario] = {}
    unknown: dict[Key, int] = {}
    for path in sorted(CASES.glob("*.yml")):
        for case in cases_in(path)["tests"]:
            for key, labels, silent, at in fired(case):
                if 0 < at - silent < unknown.get(key, at):
                    unknown[key] = at - silent
                    series = tuple(continued(each, at, at + steps) for each in case["input_series"])
                    if key[0] in _WHILE_SEEN:
                        series = _with_states(series)
                    found[key] = Scenario(key, labels, int(seconds_in(case["interval"])), at, series)
    return found


def _with_states(series: tuple[TimeSeries, ...]) -> tuple[TimeSeries, ...]:
    """With the states of the ranks, which a case may leave out and every agent exports."""
    if any(each.name == "rankwatch_rank_state" for each in series):
        return series
    ranks = {tuple(each.labels.get(label, "") for label in _OF_RANK): each.samples for each in series}
    states = (
        TimeSeries(
            "rankwatch_rank_state",
            {**dict(zip(_OF_RANK, rank, strict=True)), "state": "running"},
            tuple(1.0 if isinstance(each, float) else each for each in samples),
        )
        for rank, samples in ranks.items()
        if all(rank)
    )
    return (*series, *states)


def fired(case: Mapping[str, Any]) -> Iterator[tuple[Key, Mapping[str, str], int, int]]:
    """Alerts that a case sees firing: key, labels, the last step before at which it sees none of its name
    (0 if it does not look), and the step at which it looks."""
    silent: dict[str, int] = {}
    for each in case.get("alert_rule_test", ()):
        name, at = each["alertname"], int(seconds_in(each["eval_time"]) // seconds_in(case["interval"]))
        if not each["exp_alerts"]:
            silent[name] = at
        for alert in each["exp_alerts"]:
            yield key_of(name, alert["exp_labels"]), alert["exp_labels"], silent.get(name, 0), at


def continued(declared: Mapping[str, str], fires: int, steps: int) -> TimeSeries:
    """A series of a case as it is declared up to step `fires`, and as it goes on from there."""
    name, _, rest = declared["series"].partition("{")
    labels = {label: one or other for label, one, other in _SERIES.findall(rest)}
    samples = [*samples_in(declared["values"])][: fires + 1]
    samples += [None] * (fires + 1 - len(samples))
    last, before = samples[fires], samples[fires - 1]
    moves = isinstance(last, float) and isinstance(before, float) and last - before == last - before
    slope = last - before if moves else 0.0  # type: ignore[operator]
    for step in range(1, steps - fires + 1):
        samples.append(last + slope * step if isinstance(last, float) else None)
    return TimeSeries(name, labels, tuple(samples))


def samples_in(text: str) -> Iterator[Sample]:
    """The notation of promtool: `1+2x3`, `4x3`, `_x2`, `_`, `stale`."""
    for token in str(text).split():
        if token == STALE:
            yield STALE
        elif token.startswith("_"):
            yield from [None] * int(token.partition("x")[2] or 1)
        else:
            found = _TOKEN.fullmatch(token)
            assert found, token
            start, slope = float(found["start"]), float(found["slope"] or 0)
            for step in range(int(found["times"] or 0) + 1):
                yield start + slope * step if slope else start


def seldom(series: TimeSeries, every: int) -> TimeSeries:
    """The series with one sample in so many steps. One that ends between two samples ends at the second."""
    kept = list(series.samples[::every])
    for at, each in enumerate(series.samples):
        if each == STALE and (later := -(-at // every)) < len(kept) and kept[later] is None:
            kept[later] = STALE
    return series._replace(samples=tuple(kept))


def written(series: TimeSeries) -> dict[str, str]:
    """The series as promtool reads it."""
    inner = ", ".join(f"{label}={json.dumps(value)}" for label, value in series.labels.items())
    values = " ".join("_" if each is None else str(each) for each in series.samples)
    values = values.replace("nan", "NaN").replace("inf", "Inf")
    return {"series": f"{series.name}{{{inner}}}", "values": values}


def without(series: TimeSeries, first: int, steps: int) -> TimeSeries:
    """The series with a gap: the scrapes of these steps fail."""
    samples = [
        STALE if first <= step < first + steps and isinstance(each, float) else each
        for step, each in enumerate(series.samples)
    ]
    return series._replace(samples=tuple(samples))


def begun_anew(series: TimeSeries, first: int) -> TimeSeries:
    """The series of an agent that starts at this step: counters begin at 0."""
    if not series.counts:
        return series
    known = [each for each in series.samples[:first] if isinstance(each, float)]
    base = known[-1] if known else 0.0
    samples = [
        each - base if step >= first and isinstance(each, float) else each
        for step, each in enumerate(series.samples)
    ]
    return series._replace(samples=tuple(samples))


def moved(series: TimeSeries, first: int, instance: str) -> Iterator[TimeSeries]:
    """The series before this step, and a new one from then on, by an agent with another address."""
    ends = isinstance(series.samples[first - 1], float)
    before = (*series.samples[:first], STALE) if ends else series.samples[:first]
    yield series._replace(samples=before)
    after = (None,) * first + series.samples[first:]
    yield series._replace(labels={**series.labels, "instance": instance}, samples=after)
