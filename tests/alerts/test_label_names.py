"""Rules, routes, texts and runbooks with other names of labels say the same as those that ship."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rankwatch.settings import FieldError
from rankwatch_alerts import RuleConfig, alert_groups, alert_rules, alertmanager_config, recording_groups
from rankwatch_alerts.generation import write_alertmanager
from rankwatch_alerts.label_names import in_query, in_routes, in_template
from rankwatch_alerts.promql import parse, selectors
from rankwatch_alerts.rules import AlertRule, RecordingRule
from support.alerts.rule_test import CASES, cases_in, check, groups_of, without_keeping
from support.servers.prometheus import require

NAMES = {"cluster": "k8s_cluster", "node": "hostname"}
GROUPS = (*recording_groups(RuleConfig()), *alert_groups(RuleConfig()))
RULES = [rule for group in GROUPS for rule in group.rules]
_LIST = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
_OF_SERIES = re.compile(r"(?<=[{,\s])(cluster|node)(?==\")")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("sum by (cluster, node) (x)", "sum by (k8s_cluster, hostname) (x)"),
        ('x{cluster="cluster", run="node"}', 'x{k8s_cluster="cluster", run="node"}'),
        ("node:a * on (node) group_left (cluster) b", "node:a * on (hostname) group_left (k8s_cluster) b"),
        ('label_replace(x, "node", "", "run", "node")', 'label_replace(x, "hostname", "", "run", "node")'),
        ('label_join(x, "node", "-", "run", "node")', 'label_join(x, "hostname", "-", "run", "hostname")'),
        ('count_values("node", x)', 'count_values("hostname", x)'),
        ('count_values("node", x) by (run)', 'count_values("hostname", x) by (run)'),
        ('count_values by (cluster) ("node", x)', 'count_values by (k8s_cluster) ("hostname", x)'),
        ('count_values without (run) (#\n "node", x)', 'count_values without (run) (#\n "hostname", x)'),
        ('x{node=~"$node"}[$__rate_interval]', 'x{hostname=~"$node"}[$__rate_interval]'),
        ("label_values(x{cluster=~'.+'}, node)", "label_values(x{k8s_cluster=~'.+'}, hostname)"),
        ("label_values(node)", "label_values(hostname)"),
        ("sum(x) # by (node)", "sum(x) # by (node)"),
        ('max(x{node !~ "a|b" , run!=""})', 'max(x{hostname !~ "a|b" , run!=""})'),
    ],
)  # fmt: skip
def test_query(given: str, expected: str) -> None:
    """Only where the grammar has a label: not in values, names of series, comments or variables."""
    assert in_query(given, NAMES) == expected


@pytest.mark.parametrize(
    "rule", RULES, ids=lambda rule: rule.as_dict().get("record") or rule.as_dict()["alert"]
)
def test_rule(rule: Any) -> None:
    """As the parsed expression has it: the same series, with the new names in all matchers and lists."""
    new = in_query(rule.expression, NAMES)
    old_selectors, new_selectors = (list(selectors(parse(each))) for each in (rule.expression, new))
    for old, changed in zip(old_selectors, new_selectors, strict=True):
        assert changed.metric == old.metric
        assert changed.matched == tuple(NAMES.get(name, name) for name in old.matched)
    listed = {name.strip() for found in _LIST.findall(new) for name in found.split(",")}
    assert not listed & NAMES.keys()
    assert in_query(new, {new_name: name for name, new_name in NAMES.items()}) == rule.expression


def test_label_that_a_rule_counts() -> None:
    """The recorded series has it, under its new name."""
    groups = recording_groups(RuleConfig())
    (rule,) = [
        rule.as_dict({"excess": "over"})
        for group in groups
        for rule in group.rules
        if isinstance(rule, RecordingRule) and rule.record == "run_excess:rankwatch_ranks:count"
    ]
    assert '"over"' in str(rule["expr"]) and "excess" not in str(rule["expr"])


@pytest.mark.parametrize("rule", alert_rules(RuleConfig()), ids=lambda rule: rule.alert)
def test_annotations(rule: AlertRule) -> None:
    """No text names a label that the alert no longer has."""
    document = rule.as_dict(NAMES)
    texts = json.dumps([document["annotations"], document["labels"]])
    assert not re.search(r"(?:\$labels|\.Labels)\.(?:cluster|node)\b", texts)
    assert not re.search(r"[{,] ?(?:cluster|node) ?=", texts)


@pytest.mark.process
@pytest.mark.parametrize("name", ["GpuFault.lost", "LinkDown.nic", "RunFailed.failed"])
def test_same_alerts(name: str, tmp_path: Path) -> None:
    """Series with other labels raise the same alerts, with the same texts, at the same times."""
    agent, *shipped = groups_of(RuleConfig(label_names=NAMES))
    renamed = [{**each, "expr": in_query(each["expr"], NAMES)} for each in agent["rules"]]
    cases = cases_in(CASES / f"Rankwatch{name}.yml")
    cases["tests"] = [each for each in cases["tests"] if "scrape_interval_seconds" not in each]
    assert any(alert["exp_alerts"] for case in cases["tests"] for alert in case["alert_rule_test"])
    for case in cases["tests"]:
        case.pop("promql_expr_test", None)
        for series in case["input_series"]:
            series["series"] = _OF_SERIES.sub(lambda found: NAMES[found[0]], series["series"])
        for alert in (alert for asked in case["alert_rule_test"] for alert in asked["exp_alerts"]):
            alert["exp_labels"] = {
                NAMES.get(label, label): text for label, text in alert["exp_labels"].items()
            }
    groups = without_keeping([{**agent, "rules": renamed}, *shipped])
    check(cases["tests"], groups, cases["evaluation_interval"], tmp_path)


def test_routes() -> None:
    """Lists of labels and matchers; values and names of receivers stay."""
    config = in_routes(alertmanager_config(RuleConfig()), NAMES)
    text = json.dumps(config)
    assert '"k8s_cluster"' in text
    assert not re.search(r'"(?:cluster|node)(?:"|=|!)', text)
    assert in_routes({"matchers": ['node="node"', 'cluster=~".+"'], "equal": ["node", "run"]}, NAMES) == {
        "matchers": ['hostname="node"', 'k8s_cluster=~".+"'],
        "equal": ["hostname", "run"],
    }


@pytest.mark.process
def test_texts_of_notifications(tmp_path: Path) -> None:
    """The file beside the configuration names the labels that alerts have."""
    config, *_, texts = write_alertmanager(RuleConfig(label_names=NAMES), tmp_path)
    assert ".Labels.hostname" in texts.read_text()
    assert not re.search(r"Labels\.(?:cluster|node)\b", texts.read_text())
    require("amtool")
    subprocess.run(["amtool", "check-config", str(config)], check=True, stdout=subprocess.DEVNULL)


def test_template() -> None:
    """Queries in it too."""
    given = (
        '{{ with printf `x{node=%q}` $labels.node | query | sortByLabel "node" }}'
        "node {{ .Labels.node }}{{ end }}"
    )
    expected = (
        '{{ with printf `x{hostname=%q}` $labels.hostname | query | sortByLabel "hostname" }}'
        "node {{ .Labels.hostname }}{{ end }}"
    )
    assert in_template(given, NAMES) == expected


@pytest.mark.parametrize(
    "names",
    [
        {"clustre": "x"},
        {"severity": "level"},
        {"cluster": "run"},
        {"cluster": "instance"},
        {"cluster": "x", "node": "x"},
        {"cluster": "k8s-cluster"},
        {"cluster": "__name__"},
        {"cluster": ""},
    ],
)
def test_wrong_names(names: dict[str, str]) -> None:
    """Unknown labels, labels with a meaning of their own, and two labels of one name."""
    with pytest.raises(FieldError, match=r"label_names = .*: expected labels of rankwatch"):
        RuleConfig(label_names=names)


def test_two_labels_may_change_places() -> None:
    """What stands for another label is free once that one has another name."""
    assert RuleConfig(label_names={"node": "rank", "rank": "node"}).label_names["node"] == "rank"
