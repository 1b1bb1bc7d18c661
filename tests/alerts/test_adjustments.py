"""What settings change in rules, on rules as a rule file has them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rankwatch.errors import SettingError
from rankwatch_alerts import RuleConfig, alert_groups, load_config
from rankwatch_alerts.adjustments import adjusted, links
from rankwatch_alerts.rules import AlertRule
from support.alerts.reasons import ALERTS
from support.alerts.rule_test import CASES, cases_in, check, groups_of, without_keeping


def _rule(alert: str, **labels: str) -> dict[str, Any]:
    fixed = {"product": "rankwatch", "owner": "training", **labels}
    return {"alert": alert, "expr": "up == 0", "for": "1m", "labels": fixed, "annotations": {"summary": "s"}}


JITTER, NETWORK = (
    _rule("RankwatchRunSlow", cause=each, severity="warning") for each in ("jitter", "network")
)
STALLED = _rule("RankwatchRunStalled", reason="rank_known")
RULES = (JITTER, NETWORK, STALLED)


def _settings(text: str, folder: Path) -> RuleConfig:
    file = folder / "rules.toml"
    file.write_text(text)
    return load_config(file)


def test_nothing_set() -> None:
    """The rules are what they were."""
    assert list(adjusted(RULES, RuleConfig())) == list(RULES)


def test_labels(tmp_path: Path) -> None:
    """On every alert; the labels by which routes and inhibitions work stay."""
    config = _settings('extra_labels = {team = "ml"}\nowners = {RankwatchRunSlow = "hpc"}\n', tmp_path)
    jitter, _, stalled = adjusted(RULES, config)
    assert jitter["labels"] == {**JITTER["labels"], "team": "ml", "owner": "hpc"}
    assert stalled["labels"] == {**STALLED["labels"], "team": "ml"}
    assert "team" not in JITTER["labels"]


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_owner_makes_no_rule_twice(alert: str, tmp_path: Path) -> None:
    """Prometheus takes two rules with equal names and labels for one that was written twice."""
    config = _settings(f'owners = {{{alert} = "hpc"}}\n', tmp_path)
    rules = [each for group in groups_of(config) for each in group["rules"] if "alert" in each]
    labels = [(each["alert"], *sorted(each["labels"].items())) for each in rules]
    assert len(set(labels)) == len(labels)


@pytest.mark.process
def test_rules_that_became_one(tmp_path: Path) -> None:
    """Each reason of them is told as before, by the new owner."""
    config = _settings('owners = {RankwatchRunSlow = "hpc"}\n', tmp_path)
    for name in ("jitter", "regressed"):
        content = cases_in(CASES / f"RankwatchRunSlow.{name}.yml")
        cases = re.sub(r'(owner(?:": "|=\\"))(?:training|platform)', r"\1hpc", json.dumps(content["tests"]))
        check(json.loads(cases), without_keeping(groups_of(config)), content["evaluation_interval"], tmp_path)


def test_disabled(tmp_path: Path) -> None:
    """A whole alert, or one reason of it."""
    one = _settings('disabled_alerts = ["RankwatchRunSlow/jitter"]\n', tmp_path)
    assert list(adjusted(RULES, one)) == [NETWORK, STALLED]
    whole = _settings('disabled_alerts = ["RankwatchRunSlow"]\n', tmp_path)
    assert list(adjusted(RULES, whole)) == [STALLED]


def test_overrides(tmp_path: Path) -> None:
    """What names the reason wins over what names the alert; a severity wins over that of the expression."""
    config = _settings(
        "[overrides.RankwatchRunSlow]\nseverity = 'critical'\nlabels = {tier = '1', a = 'b'}\n"
        "[overrides.'RankwatchRunSlow/jitter']\nfor_seconds = 90\nlabels = {tier = '2'}\n"
        "[overrides.RankwatchRunStalled]\nseverity = 'warning'\nfor_seconds = 0.5\n",
        tmp_path,
    )
    jitter, network, stalled = adjusted(RULES, config)
    assert jitter["labels"] == {**JITTER["labels"], "severity": "critical", "tier": "2", "a": "b"}
    assert (jitter["for"], network["for"], stalled["for"]) == (90, "1m", 0.5)
    assert network["labels"] == {**NETWORK["labels"], "severity": "critical", "tier": "1", "a": "b"}
    assert stalled["labels"]["severity"] == "warning"
    assert {**stalled, "labels": 0, "for": 0} == {**STALLED, "labels": 0, "for": 0}


def test_reason_of_series(tmp_path: Path) -> None:
    """Where the expression gives the reason, it leaves out what is off, and what has an override is a rule
    of its own."""
    rule = {**_rule("RankwatchGpusWasted"), "by": "reason", "expr": "up == 0\nor\nup == 1\n"}
    rule["annotations"] = {"description": {"idle": "a", "utilisation": "b", "mfu": "c"}}
    config = _settings(
        "disabled_alerts = ['RankwatchGpusWasted/idle']\n"
        "[overrides.'RankwatchGpusWasted/mfu']\nseverity = 'critical'\n",
        tmp_path,
    )
    rest, mfu = adjusted([rule], config)
    every = "(\n  up == 0\n  or\n  up == 1\n)\n"
    of_reason = 'on (reason) label_replace(vector(1), "reason", "{}", "", "")\n'
    assert mfu["expr"] == every + "and " + of_reason.format("mfu")
    left_out = ("unless " + of_reason.format(each) for each in ("idle", "mfu"))
    assert rest == {**rule, "expr": every + "".join(left_out)}
    assert mfu["labels"] == {**rule["labels"], "reason": "mfu", "severity": "critical"}


def test_every_reason() -> None:
    """Each reason that may be named changes rules: with all of them off, what is left has none."""
    off = tuple(f"{alert}/{reason}" for alert, reasons in ALERTS.items() for reason in reasons)
    alert_groups(RuleConfig(disabled_alerts=off))
    config = RuleConfig(overrides={each: {"for_seconds": 61.0} for each in off})
    rules = [rule for group in alert_groups(config) for rule in group.rules if isinstance(rule, AlertRule)]
    changed = {f"{rule.alert}/{rule.reason}" for rule in rules if rule.for_seconds == 61}
    assert changed == set(off)


@pytest.mark.process
def test_reason_that_is_off(tmp_path: Path) -> None:
    """It is silent; another of the same alert fires with the severity that the settings give to it."""
    config = RuleConfig(
        disabled_alerts=("RankwatchGpusWasted/idle",),
        overrides={"RankwatchGpusWasted/utilisation": {"severity": "critical"}},
    )
    groups = without_keeping(groups_of(config))
    cases = cases_in(CASES / "RankwatchGpusWasted.utilisation.yml")
    expected = [each for case in cases["tests"] for each in case["alert_rule_test"]]
    for each in expected:
        reasons = {alert["exp_labels"]["reason"]: alert for alert in each["exp_alerts"]}
        if alert := reasons.get("utilisation"):
            alert["exp_labels"]["severity"] = "critical"
        each["exp_alerts"] = [alert for reason, alert in reasons.items() if reason != "idle"]
    assert {alert["exp_labels"]["reason"] for each in expected for alert in each["exp_alerts"]} > {"mfu"}
    check(cases["tests"], groups, cases["evaluation_interval"], tmp_path)


@pytest.mark.parametrize(
    ("line", "unknown"),
    [
        ("disabled_alerts = ['RankwatchLinkDown/nic', 'RankwatchNoSuch']", "RankwatchNoSuch"),
        ("disabled_alerts = ['RankwatchRunSlow/tired']", "RankwatchRunSlow/tired"),
        ("disabled_alerts = ['RankwatchRunSlow/']", "RankwatchRunSlow/"),
        ("overrides = {RankwatchRunSlo = {severity = 'warning'}}", "RankwatchRunSlo"),
        ("owners = {RankwatchRunSlo = 'hpc'}", "RankwatchRunSlo"),
        ("owners = {'RankwatchRunSlow/jitter' = 'hpc'}", "RankwatchRunSlow/jitter"),
    ],
)
def test_unknown_alert(line: str, unknown: str, tmp_path: Path) -> None:
    """A name that no rule has is told, rather than nothing being done in silence."""
    with pytest.raises(SettingError, match=f"no rule has the name and reason {unknown}$"):
        alert_groups(_settings(line, tmp_path))


def test_alert_of_ones_own(tmp_path: Path) -> None:
    """What settings say of it holds as of those that are shipped."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.yaml").write_text(
        "groups: [{name: mine, interval: 60, rules: [{alert: QueueFull, expr: up == 0, labels: "
        "{owner: training, reason: full}, annotations: {summary: It is full., description: It is.}}]}]\n"
    )
    config = _settings(
        f"rules_directory = '{tmp_path}/own'\nowners = {{QueueFull = 'hpc'}}\n"
        "overrides = {'QueueFull/full' = {severity = 'critical', for_seconds = 90}}\n",
        tmp_path,
    )
    rules = [rule for group in alert_groups(config) for rule in group.rules if isinstance(rule, AlertRule)]
    (rule,) = [rule for rule in rules if rule.alert == "QueueFull"]
    assert (rule.labels["owner"], rule.severity, rule.for_seconds) == ("hpc", "critical", 90)
    off = _settings(f"rules_directory = '{tmp_path}/own'\ndisabled_alerts = ['QueueFull/full']\n", tmp_path)
    assert not [rule for group in alert_groups(off) for rule in group.rules if "QueueFull" in str(rule)]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "overrides = {RankwatchRunSlow = {severity = 'page'}}",
            "for RankwatchRunSlow a severity of",
        ),
        ("overrides = {RankwatchRunSlow = {for = '5m'}}", "some of severity, for_seconds, labels"),
        ("overrides = {RankwatchRunSlow = {for_seconds = -1}}", "for_seconds from 0 to a year"),
        ("overrides = {RankwatchRunSlow = {for_seconds = '5m'}}", "for_seconds from 0 to a year"),
        (
            "overrides = {RankwatchRunSlow = {labels = {owner = 'me'}}}",
            "for RankwatchRunSlow no label owner, by which rules",
        ),
        ("overrides = {RankwatchRunSlow = {labels = 'me'}}", "a table of labels"),
        ("overrides = {RankwatchRunSlow = 'off'}", "a table of tables"),
        ("overrides = {RankwatchWatchdog = {severity = 'critical'}}", "no severity of RankwatchWatchdog"),
        *(
            (f"extra_labels = {{{label} = 'mine'}}", f"expected no label {label}, by which rules")
            for label in ("product", "node", "rank", "gpu", "run", "device", "contact", "job", "alertname")
        ),
        (
            "extra_labels = {k8s_cluster = 'eu1'}\nlabel_names = {cluster = 'k8s_cluster'}",
            "expected no label k8s_cluster, by which rules",
        ),
        (
            "extra_labels = {'a-b' = 'c'}",
            "names of letters, digits and _ that do not begin with __, unlike 'a-b'",
        ),
        (
            "extra_labels = {a = '{{ $labels.run }}'}",
            "printable text without template braces for the label a",
        ),
        (
            "extra_labels = {__a = 'b'}",
            "names of letters, digits and _ that do not begin with __, unlike '__a'",
        ),
        ("ticket_time_zone = 'Europe/Berln'", "a time zone, such as UTC or Europe/Berlin"),
        ("ticket_time_zone = 'Europe'", "a time zone, such as UTC or Europe/Berlin"),
        ("ticket_time_zone = '/etc/passwd'", "a time zone, such as UTC or Europe/Berlin"),
    ],
)
def test_wrong_settings(line: str, sentence: str, tmp_path: Path) -> None:
    """One sentence, before any rule is written."""
    with pytest.raises(SettingError) as caught:
        _settings(f"{line}\n", tmp_path)
    assert sentence in str(caught.value)


def test_links() -> None:
    """Where a base URL is set, and only there."""
    wiki, grafana = "https://wiki.test/rw/", "https://grafana.test"
    runbook = {"runbook_url": "https://wiki.test/rw/RankwatchRunSlow"}
    dashboard = {"dashboard_url": "https://grafana.test/d/uid?var-run=r"}
    for given, expected in (
        ((wiki, grafana), runbook | dashboard),
        ((wiki, ""), runbook),
        (("", grafana), dashboard),
        (("", ""), {}),
    ):
        runbooks, dashboards = given
        found = links("RankwatchRunSlow", "uid?var-run=r", runbooks=runbooks, dashboards=dashboards)
        assert found == expected
