"""Which alerts fire at each moment of a day, as promtool evaluates the rules that ship."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rankwatch_alerts import RuleConfig, write_rules
from rankwatch_alerts.generation import write_alertmanager
from support.alerts.fleet.day import Day
from support.alerts.fleet.machines import write_machines
from support.alerts.fleet.page import Pages
from support.alerts.fleet.ranks import write_runs
from support.alerts.rule_test import alive, needed, run_promtool, seconds_in

Labels = tuple[tuple[str, str], ...]
"""Of an alert, with its name; sorted."""
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_QUESTION = 'ALERTS{alertstate="firing"}'
_ANSWER = re.compile(
    r'expr: "ALERTS\{alertstate=\\"firing\\"\}", time: (?P<time>[\dhms]+),\n *exp:.*\n *got:(?P<got>.*)'
)
_SERIES = re.compile(r'\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\} ')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SCRAPED = re.compile(
    r"""(?P<quoted>"(?:[^"\\]|\\.)*"|\b(?:by|on|without|ignoring|group_left|group_right)\s*\([^)]*\))"""
    r"""|(?P<selector>(?<![\w:])(?:rankwatch_\w+|up|scrape_duration_seconds)\b(?![:(])"""
    r"""(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?(?:\[[^]:]*\])?)(?:\s+offset\s+(?P<offset>[\dhms]+))?"""
)
"""A selector of what agents export or Prometheus writes at a scrape, with its offset."""
_COLLECT_SELDOM = {"GOGC": "1000", "GOMEMLIMIT": "3GiB"}
"""promtool keeps little of what it allocates, but holds the samples of a day."""


class Shipped(NamedTuple):
    """What users import."""

    groups: Sequence[Mapping[str, Any]]
    """Groups of rules in the order in which one depends on the other."""
    alertmanager: Mapping[str, Any]


def shipped(config: RuleConfig, directory: Path) -> Shipped:
    """The rules and the configuration of Alertmanager, as they are generated into this directory."""
    written = (*write_rules(config, directory), *write_alertmanager(config, directory))
    documents = {path.name: yaml.load(path.read_text(), yaml.CSafeLoader)
                 for path in written if path.suffix == ".yml"}  # fmt: skip
    (routes,) = (each for each in documents.values() if "route" in each)
    files = sorted(name for name, each in documents.items() if "groups" in each)
    recording = [name for name in files if "record" in documents[name]["groups"][0]["rules"][0]]
    order = [*recording, *(name for name in files if name not in recording)]
    return Shipped([group for name in order for group in documents[name]["groups"]], routes)


def firing(
    day: Day, groups: Sequence[Mapping[str, Any]], interval: int, directory: Path, late: int = 0
) -> Iterator[tuple[float, set[Labels]]]:
    """The alerts that fire at each evaluation of the day, which takes minutes.

    interval: seconds between two scrapes, and between two evaluations.
    late: seconds after which samples reach the rules, as by remote write, and without marks of the end of a
    series; 0 where they are scraped.
    """
    kept = _that_fire(groups)
    names = {name for group in kept for rule in group["rules"] for name in _NAME.findall(rule["expr"])}
    pages = Pages(day=day, interval=interval, wanted=names, markers=not late)
    write_runs(pages)
    write_machines(pages)
    kept = alive(kept, (each["series"] for each in pages.series))
    if late:
        kept = [delayed(group, late) for group in kept]
    yield from _answers(_run(pages, kept, directory), pages)


def _that_fire(groups: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Alerts without their texts, and the recorded series on which they depend."""
    bare = [
        {
            **group,
            "rules": [{**rule, "annotations": {}} if "alert" in rule else rule for rule in group["rules"]],
        }
        for group in groups
    ]
    alerts = [rule["alert"] for group in bare for rule in group["rules"] if "alert" in rule]
    return needed(bare, {"promql_expr_test": [{"expr": alert} for alert in alerts]})


def delayed(group: Mapping[str, Any], seconds: int) -> Mapping[str, Any]:
    """Rules that see what is scraped only so many seconds later, with its own time stamps.

    `timestamp()` and the age of values are then as they are behind remote write. A window still has its full
    length, where in truth its youngest part is missing.
    """
    rules = [
        {**rule, "expr": _SCRAPED.sub(partial(_offset, seconds), rule["expr"])} for rule in group["rules"]
    ]
    return {**group, "rules": rules}


def _offset(seconds: int, selector: re.Match[str]) -> str:
    if selector["quoted"] is not None:
        return selector[0]
    return f"{selector['selector']} offset {seconds + seconds_in(selector['offset'] or ''):.0f}s"


def _run(pages: Pages, groups: Sequence[Mapping[str, Any]], directory: Path) -> str:
    interval = f"{pages.interval}s"
    asked = [
        {"expr": _QUESTION, "eval_time": f"{moment:.0f}s", "exp_samples": [{"labels": "none", "value": 1}]}
        for moment in pages.times
    ]
    case = {"interval": interval, "input_series": [_joined(pages.series)], "promql_expr_test": asked}
    (directory / "rules.json").write_text(json.dumps({"groups": groups}))
    document = {
        "rule_files": ["rules.json"],
        "evaluation_interval": interval,
        "group_eval_order": [group["name"] for group in groups],
        "tests": [case],
    }
    (directory / "case.json").write_text(json.dumps(document))
    done = run_promtool([directory / "case.json"], _COLLECT_SELDOM)
    assert done.returncode in (0, 1), f"promtool ended with {done.returncode}: {done.stdout[:2000]}"
    return done.stdout


def _joined(series: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """All series as lines behind the first one: promtool appends each entry to one growing text, which takes
    ten minutes for the series of a day."""
    first, *others = series
    lines = (f"\n  {each['series']} {each['values']}" for each in others)
    return {"series": first["series"], "values": first["values"] + "".join(lines)}


def _answers(output: str, pages: Pages) -> Iterator[tuple[float, set[Labels]]]:
    """Every question fails, because it expects what there is not, and says what it got."""
    found = {}
    for each in _ANSWER.finditer(output):
        found[seconds_in(each["time"])] = {_labels(text) for text in _SERIES.findall(each["got"])}
    if len(found) != len(pages.times):
        raise AssertionError(f"{len(found)} answers of {len(pages.times)}: {output[:2000]}")
    yield from sorted(found.items())


def _labels(text: str) -> Labels:
    return tuple(sorted(pair for pair in _LABEL.findall(text) if pair[0] not in ("__name__", "alertstate")))
