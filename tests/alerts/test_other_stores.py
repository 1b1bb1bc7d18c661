"""Series as other stores keep them: without markers of their end, late, or twice.

The node's own sums are written out: what `groups_of` makes of series of ranks would have no end either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankwatch_alerts import RuleConfig
from support.alerts.rule_test import CASES, Group, cases_in, check, groups_of, without_keeping
from support.paths import ROOT

CONTENT = cases_in(ROOT / "tests" / "alerts" / "other_stores.yml")
REPLICA = "prometheus_replica"
_SELECTOR = re.compile(r'(?<![\w:"])((?:rankwatch_|agent:)[\w:]+)(\{)?')


@pytest.mark.process
@pytest.mark.parametrize("case", CONTENT["tests"], ids=lambda case: str(case["name"]))
def test_case(case: Mapping[str, Any], tmp_path: Path) -> None:
    _, *shipped = without_keeping(groups_of(RuleConfig()))
    check([case], shipped, CONTENT["evaluation_interval"], tmp_path, every_rule=True)


@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.parametrize("path", sorted(CASES.glob("*.yml")), ids=lambda path: path.stem)
def test_two_servers_write_to_one_store(path: Path, tmp_path: Path) -> None:
    """Each case ends as with one: every series of agents is there twice, and told apart by a label."""
    content = cases_in(path)
    agents, *shipped = without_keeping(groups_of(RuleConfig()))
    groups = [*(_of_replica(agents, each) for each in "ab"), *shipped]
    cases = [
        _twice(each)
        for each in content["tests"]
        if REPLICA not in str(each) and "scrape_interval_seconds" not in each
    ]
    check(cases, groups, content["evaluation_interval"], tmp_path)


def _of_replica(group: Group, replica: str) -> Group:
    """What agents export of the series of ranks, of those that one server has scraped."""
    this = f'{REPLICA}="{replica}"'

    def selected(found: re.Match[str]) -> str:
        return f"{found[1]}{{{this}{', ' if found[2] else '}'}"

    rules = [
        {
            **rule,
            "expr": _SELECTOR.sub(selected, rule["expr"]),
            "labels": {**rule.get("labels", {}), REPLICA: replica},
        }
        for rule in group["rules"]
    ]
    return {**group, "name": f"{group['name']}-{replica}", "rules": rules}


def _twice(case: Mapping[str, Any]) -> dict[str, Any]:
    """The case with each series of both servers; what rules record is there once."""
    series = []
    for each in case["input_series"]:
        name, _, labels = each["series"].partition("{")
        if ":" in name:
            series.append(each)
        else:
            told = [f'{name}{{{REPLICA}="{replica}", {labels or "}"}' for replica in "ab"]
            series += [{**each, "series": text} for text in told]
    return {**case, "input_series": series}
