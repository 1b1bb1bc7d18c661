"""`python -m tests.bench.rules_compare OLD_RULES_DIR`, from the root of the repository: rules before and now.

Both are evaluated by promtool over what agents exported in the recorded runs, so that a change of rules shows
as a list: for each recorded series what differs, and for each alert when it fired, and whom it named.

OLD_RULES_DIR holds rule files with the default settings (`*.rules.yml`, recording rules first), such as those
of an earlier commit in `alerts/generated`. The recording is slowed down by as much as its settings are faster
than the defaults: times are multiplied, and between two samples counters grow evenly and gauges stay.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rankwatch.conventions.metrics import METRICS, Kind
from rankwatch_alerts import HARDWARE_ALERTS, RuleConfig, alert_groups, recording_groups
from rankwatch_alerts.generation import rule_file
from support.alerts.rule_test import Sample, ask
from support.recorded.runs import CONFIG, INTERVAL_SECONDS, first_moment, last_moment, read

from .result import BenchError, Result, Row, as_markdown, met

NOW = RuleConfig()
SLOWER = NOW.scrape_interval_seconds / CONFIG.scrape_interval_seconds
STEPS = int(INTERVAL_SECONDS / CONFIG.scrape_interval_seconds)
"""Evaluations from one recorded sample to the next."""
LEAD = 120
"""Evaluations before the first sample: moments before it stay above zero."""
SAME = 1e-9
"""Relative difference of values that count as equal."""
_COUNTERS = frozenset(each.name for each in METRICS if each.kind is Kind.COUNTER)
_SECONDS = frozenset(each.name for each in METRICS if each.unit == "seconds")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_NAMED = ("run", "rank", "node", "gpu", "device", "stage", "group", "operation", "run_class", "path")
"""Labels that say whom an alert is about."""
Labels = tuple[tuple[str, str], ...]
Series = Mapping[str, Mapping[Labels, Mapping[int, float]]]
"""Name -> labels -> number of the recorded moment -> value."""


class Fired(NamedTuple):
    """An alert with its reason."""

    what: str
    whom: str


class When(NamedTuple):
    """Its first and last recorded moment, and its severities."""

    first: int
    last: int
    severities: frozenset[str]

    def __str__(self) -> str:
        times = " to ".join(f"{moment * INTERVAL_SECONDS} s" for moment in (self.first, self.last))
        return f"{times}, {' and '.join(sorted(self.severities))}"


def recorded() -> list[dict[str, str]]:
    """What agents exported, as series of a rule test."""
    lines = read()
    start = first_moment(lines)
    count = round((last_moment(lines) - start) / INTERVAL_SECONDS) + 1
    found: dict[str, list[float | None]] = {}
    for series, value, moment in (line.rsplit(" ", 2) for line in lines):
        if ":" not in series.partition("{")[0] and not series.startswith("ALERTS"):
            samples = found.setdefault(series, [None] * count)
            samples[round((float(moment) - start) / INTERVAL_SECONDS)] = _slowed(series, float(value), start)
    return [{"series": series, "values": _written(series, samples)} for series, samples in found.items()]


def _slowed(series: str, value: float, start: float) -> float:
    name = series.partition("{")[0]
    if name.endswith("_timestamp_seconds"):
        return (value - start) * SLOWER + LEAD * NOW.scrape_interval_seconds if value else 0.0
    return value * SLOWER if name in _SECONDS else value


def _written(series: str, samples: Sequence[float | None]) -> str:
    """In the notation of promtool. A series that ends does so at once, as after a scrape without it."""
    grows = series.partition("{")[0] in _COUNTERS
    parts, before = [f"_x{LEAD}"], None
    for value, following in pairwise([*samples, None]):
        if value is None:
            parts.append(f"_x{STEPS}" if before is None else f"stale _x{STEPS - 1}")
        elif grows and following is not None and following > value:
            parts += [f"{value + (following - value) * step / STEPS:.9g}" for step in range(STEPS)]
        else:
            parts += [f"{value!r}".replace("nan", "NaN").replace("inf", "Inf")] * STEPS
        before = value
    return " ".join(parts)


def in_order(groups: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rules as one group, each behind those that it reads. promtool evaluates groups one after the other,
    so that another order of groups would look like another rule."""
    rules = [rule for group in groups for rule in group["rules"]]
    named: dict[str, list[int]] = {}
    for number, rule in enumerate(rules):
        named.setdefault(rule.get("record", ""), []).append(number)
    ordered: dict[int, Mapping[str, Any]] = {}
    begun: set[int] = set()

    def add(number: int) -> None:
        if number not in begun:  # rules may read each other, as they were a moment ago
            begun.add(number)
            for name in _NAME.findall(rules[number]["expr"]):
                for each in named.get(name, ()):
                    add(each)
            ordered[number] = rules[number]

    for number in range(len(rules)):
        add(number)
    return [{"name": "all", "rules": [*ordered.values()]}]


def evaluated(groups: Iterable[Mapping[str, Any]], series: list[dict[str, str]], moments: int) -> Series:
    """What the rules record, and their alerts, at each recorded moment."""
    interval = f"{NOW.scrape_interval_seconds:g}s"
    tests = [
        {
            "expr": f'{{__name__=~".+:.+|ALERTS", __name__!="{moment}"}}',  # each expression is another one
            "eval_time": f"{(LEAD + moment * STEPS) * NOW.scrape_interval_seconds:g}s",
            "exp_samples": [],
        }
        for moment in range(moments)
    ]
    case = {"interval": interval, "input_series": series, "promql_expr_test": tests}
    with tempfile.TemporaryDirectory() as name:
        answers = ask(case, list(groups), interval, Path(name), every_rule=True)
    return _by_series(answers)


def _by_series(answers: Iterable[Iterable[Sample]]) -> Series:
    found: dict[str, dict[Labels, dict[int, float]]] = {}
    for moment, samples in enumerate(answers):
        for labels, value in samples:
            key = tuple(sorted((name, text) for name, text in labels.items() if name != "__name__" and text))
            found.setdefault(labels["__name__"], {}).setdefault(key, {})[moment] = value
    return found


def compared(name: str, old: Series, new: Series) -> Row:
    """One recorded series by both."""
    before, after = (
        {
            (labels, moment): value
            for labels, one in each.get(name, {}).items()
            for moment, value in one.items()
        }
        for each in (old, new)
    )
    both = before.keys() & after.keys()
    differences = [_difference(before[each], after[each]) for each in both]
    changed = [each for each in differences if each > SAME]
    only = (len(before.keys() - both), len(after.keys() - both))
    if not changed and not any(only):
        return Row(name, f"equal, {len(both)} samples" if both else "no samples")
    largest = f"largest difference {max(changed):.2%}" if changed else ""
    return Row(
        name, f"changed: {len(changed)} of {len(both)}, {only[0]} only old, {only[1]} only new", largest
    )


def _difference(one: float, other: float) -> float:
    if one == other or (one != one and other != other):
        return 0.0
    return abs(one - other) / max(abs(one), abs(other))


def fired(series: Series) -> Mapping[Fired, When]:
    """When each alert fired, and as what."""
    found: dict[Fired, When] = {}
    for key, samples in series.get("ALERTS", {}).items():
        labels = dict(key)
        if labels["alertstate"] == "firing":
            alert, severities = _fired(labels), frozenset({labels.get("severity", "no severity")})
            first, last, others = found.get(alert, When(min(samples), max(samples), severities))
            found[alert] = When(min(first, *samples), max(last, *samples), others | severities)
    return found


def _fired(labels: Mapping[str, str]) -> Fired:
    name = labels["alertname"].removeprefix("Rankwatch")
    hidden = ("run", "rank") if labels["alertname"] in HARDWARE_ALERTS else ()
    whom = (f"{each}={labels[each]}" for each in _NAMED if each in labels and each not in hidden)
    return Fired(
        "/".join(filter(None, (name, labels.get("reason") or labels.get("cause", "")))), " ".join(whom)
    )


def result(directory: Path) -> Result:
    """The lists, from the rules of the directory and those of today."""
    present: Any = rule_file(NOW, (*recording_groups(NOW), *alert_groups(NOW)))
    old_groups, groups = _groups(directory), present["groups"]
    lines, series = read(), recorded()
    moments = round((last_moment(lines) - first_moment(lines)) / INTERVAL_SECONDS) + 1
    old, new = (evaluated(in_order(each), series, moments) for each in (old_groups, groups))
    rows = (
        *_of_records(_records(old_groups), _records(groups), old, new),
        *_of_alerts(fired(old), fired(new)),
    )
    differing = [row.what for row in rows if row.met is False]
    return Result(
        title="Rules on the recorded runs, before and now",
        rows=rows,
        notes=(
            f"{moments} moments, {INTERVAL_SECONDS} s apart in the recording, by the default settings.",
            "A sample is one series at one of these moments.",
            f"Differing: {', '.join(differing)}." if differing else "Nothing differs.",
        ),
    )


def _differs(row: Row) -> Row:
    return row._replace(target="no difference", met=False)


def _groups(directory: Path) -> list[Mapping[str, Any]]:
    """Groups of all rule files, those that record first. Raises BenchError."""
    files = sorted(directory.glob("*.rules.yml"), reverse=True)
    if not files:
        raise BenchError(f"{directory} holds no *.rules.yml")
    return [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]


def _records(groups: Iterable[Mapping[str, Any]]) -> set[str]:
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


def _of_records(before: set[str], now: set[str], old: Series, new: Series) -> Iterator[Row]:
    for name in sorted(before & now):
        row = compared(name, old, new)
        yield _differs(row) if row.measured.startswith("changed") else row
    for name in sorted(before - now):
        yield _differs(Row(name, f"gone, {_samples(old, name)} samples"))
    for name in sorted(now - before):
        yield Row(name, f"new, {_samples(new, name)} samples")


def _samples(series: Series, name: str) -> int:
    return sum(map(len, series.get(name, {}).values()))


def _of_alerts(before: Mapping[Fired, When], now: Mapping[Fired, When]) -> Iterator[Row]:
    for alert in sorted({*before, *now}):
        old, new = (str(each[alert]) if alert in each else "never" for each in (before, now))
        row = Row(f"{alert.what} {alert.whom}", f"now {new}", f"before {old}")
        yield row if old == new else _differs(row)


def main(arguments: Sequence[str]) -> int:
    """Print the lists; exit status 1 if there was nothing to compare with, or if something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rules_compare", description=__doc__)
    parser.add_argument("old_rules_dir", type=Path)
    try:
        found = result(parser.parse_args(arguments).old_rules_dir)
    except BenchError as error:
        print(f"rules_compare: {error}", file=sys.stderr)
        return 1
    print(as_markdown(found))
    return 0 if met(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
