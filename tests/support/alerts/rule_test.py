"""Rule tests: promtool evaluates rules at the moments of a case, on series that no server has.

It evaluates each rule that it is given at each moment, so it is given only those that a test asks for, and
those that they read.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rankwatch_alerts import RuleConfig, alert_groups, recording_groups
from rankwatch_alerts.generation import rule_file
from support.alerts.agent_means import agent_group
from support.paths import ROOT
from support.servers.prometheus import require

CASES = ROOT / "tests" / "alerts" / "rules"
Group = Mapping[str, Any]
"""A group of rules as a rule file has it."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_RANGE = re.compile(r"\[(\d+)-(\d+)\]")
_FOUND = re.compile(r'expr: (?P<expression>".*"), time: .*\n *exp: .*\n *got: (?P<got>.*)')
_SERIES = re.compile(r"\{([^}]*)\} ([^\s,]+)")
_COLLECT_SELDOM = {"GOGC": "1000", "GOMAXPROCS": "1"}
"""promtool keeps little, and would spend a third of its time on looking for what is left of it."""
_FROM_NOTHING = frozenset({"absent", "absent_over_time", "vector"})
"""Functions that have a result without any series. Alerts that fire are series of Prometheus itself."""
_ALERTS = "ALERTS"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Sample(NamedTuple):
    """A series at one moment."""

    labels: Mapping[str, str]
    value: float


def cases_in(path: Path) -> dict[str, Any]:
    """A file of cases. A series with `[0-3]` in its labels stands for four of them, as in Slurm's lists of
    hosts."""
    content: dict[str, Any] = yaml.load(path.read_text(), yaml.CSafeLoader)
    for case in content["tests"]:
        case["input_series"] = [each for series in case["input_series"] for each in _each(series)]
    return content


def _each(series: Mapping[str, str]) -> Iterator[dict[str, str]]:
    ((first, last),) = set(_RANGE.findall(series["series"])) or {("0", "0")}
    for number in range(int(first), int(last) + 1):
        yield {**series, "series": _RANGE.sub(str(number), series["series"])}


def groups_of(config: RuleConfig) -> list[Group]:
    """The groups that ship, in the order of evaluation, after what agents export of recent steps."""
    shipped: Any = rule_file(config, (*recording_groups(config), *alert_groups(config)))
    return [agent_group(config), *shipped["groups"]]


def needed(groups: Iterable[Group], case: Mapping[str, Any]) -> list[Group]:
    """Of all groups, the rules that a case asks for, and those that these name in turn: in expressions, in
    labels and, if the case expects an alert with its texts, in annotations."""
    groups = list(groups)
    told = any(each["exp_alerts"] for each in case.get("alert_rule_test", ()))
    mentioned: dict[str, set[str]] = {}
    for rule in (rule for group in groups for rule in group["rules"]):
        texts = [rule["expr"], *rule.get("labels", {}).values()]
        texts += rule.get("annotations", {}).values() if told else ()
        mentioned.setdefault(_name(rule), set()).update(_NAME.findall(" ".join(texts)))
    reached: set[str] = set()
    new = {name for text in asked_by(case) for name in _NAME.findall(text)} & mentioned.keys()
    while new:
        reached |= new
        new = {name for each in new for name in mentioned[each]} & mentioned.keys() - reached
    kept = [
        {**group, "rules": [each for each in group["rules"] if _name(each) in reached]} for group in groups
    ]
    return [group for group in kept if group["rules"]]


def alive(groups: Iterable[Group], series: Iterable[str]) -> list[Group]:
    """Of these groups, the rules that can have a result: one of the series that they read is there, or is the
    result of another such rule. An expression without any series is empty."""
    groups = list(groups)
    there = {*_FROM_NOTHING, _ALERTS, *(each.partition("{")[0] for each in series)}
    rules = {id(rule): rule for group in groups for rule in group["rules"]}
    living: set[int] = set()
    while new := {
        each for each in rules.keys() - living if there.intersection(_NAME.findall(rules[each]["expr"]))
    }:
        living |= new
        there |= {_name(rules[each]) for each in new}
    kept = [{**group, "rules": [each for each in group["rules"] if id(each) in living]} for group in groups]
    return [group for group in kept if group["rules"]]


def asked_by(case: Mapping[str, Any]) -> Iterator[str]:
    """Alerts and expressions that a case asks for."""
    for each in case.get("alert_rule_test", ()):
        yield each["alertname"]
    for each in case.get("promql_expr_test", ()):
        yield each["expr"]


def without_keeping(groups: Iterable[Group]) -> list[Group]:
    """The same, but an alert ends with its condition, so that a case shows when that is. `test_gaps.py` shows
    that alerts keep firing."""
    return without(groups, "keep_firing_for")


def without(groups: Iterable[Group], field: str) -> list[Group]:
    """The same, with no rule that has this field."""
    return [
        {
            **group,
            "rules": [
                {name: value for name, value in rule.items() if name != field} for rule in group["rules"]
            ],
        }
        for group in groups
    ]


def write_cases(
    cases: Iterable[Mapping[str, Any]],
    groups: Sequence[Group],
    interval: str,
    directory: Path,
    *,
    every_rule: bool = False,
) -> list[Path]:
    """Cases of this interval of evaluation as files in an existing directory, each with the rules that it
    needs, or with every rule."""
    paths = []
    for number, case in enumerate(cases):
        rules, path = directory / f"rules-{number}.json", directory / f"case-{number}.json"
        kept = groups if every_rule else needed(groups, case)
        kept = alive(kept, (each["series"] for each in case["input_series"]))
        rules.write_text(json.dumps({"groups": kept}))
        document = {
            "rule_files": [rules.name] if kept else [],
            "evaluation_interval": interval,
            "group_eval_order": [each["name"] for each in kept],
            "tests": [case],
        }
        path.write_text(json.dumps(document))
        paths.append(path)
    return paths


def seconds_in(text: str) -> float:
    """A duration as Prometheus writes it."""
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhd])", text))


def run_promtool(
    paths: Iterable[Path], environ: Mapping[str, str] = _COLLECT_SELDOM
) -> subprocess.CompletedProcess[str]:
    """`promtool test rules` on files of cases. Standard error is part of the output."""
    require("promtool")
    return subprocess.run(
        # Live jobs of other tests go first.
        ["nice", "-n", "5", "promtool", "test", "rules", *map(str, paths)],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def check(
    cases: Iterable[Mapping[str, Any]],
    groups: Sequence[Group],
    interval: str,
    directory: Path,
    *,
    every_rule: bool = False,
) -> None:
    """All that the cases expect is so."""
    done = run_promtool(write_cases(cases, groups, interval, directory, every_rule=every_rule))
    assert done.returncode == 0, done.stdout


def ask(
    case: Mapping[str, Any],
    groups: Sequence[Group],
    interval: str,
    directory: Path,
    *,
    every_rule: bool = False,
) -> list[list[Sample]]:
    """The samples of each expression of a case that expects none: promtool prints them as its reason to
    fail."""
    done = run_promtool(write_cases((case,), groups, interval, directory, every_rule=every_rule))
    assert ", err: " not in done.stdout, done.stdout
    found = {json.loads(each["expression"]): each["got"] for each in _FOUND.finditer(done.stdout)}
    assert bool(found) == bool(done.returncode), done.stdout
    expressions = [each["expr"] for each in case["promql_expr_test"]]
    assert found.keys() <= set(expressions)
    return [list(_samples(found.get(each, ""))) for each in expressions]


def _samples(got: str) -> Iterator[Sample]:
    """Series are listed as {label="value", ...} value, one behind the other."""
    for labels, value in _SERIES.findall(got):
        yield Sample(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value))


def _name(rule: Mapping[str, Any]) -> str:
    return str(rule.get("alert") or rule["record"])
