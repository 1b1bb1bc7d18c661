"""Runs promtool over a file of cases, with those rules alone that its cases ask for."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

Rule = Mapping[str, Any]

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def run_cases(cases: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """What `promtool test rules` says of a file of cases; `directory` is for the files it reads.

    Rules that no case asks for, directly or through others, are left out: promtool would evaluate each of
    them at each instant of each case, and most of its time would go there.
    """
    content = yaml.safe_load(cases.read_text())
    groups = [
        group
        for name in content["rule_files"]
        for group in yaml.safe_load((cases.parent / name).read_text())["groups"]
    ]
    wanted = _reached(set(_asked(content)), [rule for group in groups for rule in group["rules"]])
    kept = [
        {**group, "rules": [each for each in group["rules"] if _name(each) in wanted]} for group in groups
    ]
    (directory / "rules.json").write_text(json.dumps({"groups": [group for group in kept if group["rules"]]}))
    (directory / cases.name).write_text(json.dumps({**content, "rule_files": ["rules.json"]}))
    command = ["promtool", "test", "rules", str(directory / cases.name)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _asked(content: Mapping[str, Any]) -> Iterator[str]:
    """Alerts and series that the cases of a file ask for."""
    for case in content["tests"]:
        for each in case.get("alert_rule_test", ()):
            yield each["alertname"]
        for each in case.get("promql_expr_test", ()):
            yield from _NAME.findall(each["expr"])


def _reached(names: set[str], rules: list[Rule]) -> set[str]:
    """The names, and those of all rules they are made of, as expressions and annotations mention them."""
    mentioned: dict[str, set[str]] = {}
    for rule in rules:
        said = " ".join((rule["expr"], *rule.get("annotations", {}).values()))
        mentioned.setdefault(_name(rule), set()).update(_NAME.findall(said))
    reached: set[str] = set()
    new = names & mentioned.keys()
    while new:
        reached |= new
        new = {name for each in new for name in mentioned[each]} & mentioned.keys() - reached
    return reached


def _name(rule: Rule) -> str:
    return str(rule.get("alert") or rule["record"])
