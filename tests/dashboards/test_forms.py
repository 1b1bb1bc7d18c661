"""Rules and dashboards as objects of Kubernetes and as alerts of Grafana."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.alerting import Rule

from rankwatch.errors import SettingError
from rankwatch_alerts import RuleConfig, alertmanager_config, load_config, write_rules
from rankwatch_alerts.alertmanager import fragments
from rankwatch_dashboards import write_dashboards
from rankwatch_dashboards.forms import (
    MOST_BYTES,
    alertmanager_config_object,
    grafana_alerts,
    prometheus_rules,
    whole_text,
    write_forms,
)
from support.servers.notified import web_server
from support.servers.prometheus import alertmanager, poll, post_json

CONFIG = RuleConfig(prometheus_rule_labels={"release": "monitoring"})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Prometheus and Grafana read, in `plain`, and beside it the forms."""
    folder = tmp_path_factory.mktemp("made")
    write_rules(CONFIG, folder / "plain")
    dashboards = write_dashboards(CONFIG, folder / "plain")
    written = list(write_forms(CONFIG, dashboards=dashboards, directory=folder))
    assert all(path.is_file() for path in written)
    return folder


def _load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def _plain_groups(folder: Path, name: str) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = _load(folder / "plain" / f"{name}.rules.yml")["groups"]
    return groups


@pytest.mark.parametrize("name", ["recording", "alerts"])
def test_prometheus_rules(made: Path, name: str) -> None:
    """Group for group those of the rule file, which promtool reads, with the label of the operator."""
    objects = [_load(path) for path in sorted((made / "kubernetes" / "rules").glob(f"rankwatch-{name}*.yml"))]
    groups = [group for each in objects for group in each["spec"]["groups"]]
    assert groups == _plain_groups(made, name)
    for each in objects:
        assert (each["apiVersion"], each["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
        assert each["metadata"]["labels"]["release"] == "monitoring"
        assert len(yaml.safe_dump(each)) < 256 * 1024


def test_large_rule_files() -> None:
    """Groups go into as many objects as their size needs, in their order; one group is never split."""
    rule = {"record": "a:b", "expr": "x" * (MOST_BYTES // 3)}
    groups = [{"name": f"g{number}", "rules": [rule]} for number in range(5)]
    objects = list(prometheus_rules(CONFIG, "big", groups))
    assert [each["metadata"]["name"] for each in objects] == [f"rankwatch-big-{part}" for part in (1, 2, 3)]
    assert [group for each in objects for group in each["spec"]["groups"]] == groups
    with pytest.raises(ValueError, match="group g: over"):
        list(prometheus_rules(CONFIG, "big", [{"name": "g", "rules": [rule] * 4}]))


def test_parts_of_earlier_rules(made: Path) -> None:
    """An operator takes every object in the folder: parts that are no longer written go, what others put
    there stays."""
    rules = made / "kubernetes" / "rules"
    names = {path.name for path in rules.iterdir()}
    (rules / "rankwatch-alerts-9.yml").write_text((rules / "rankwatch-alerts-1.yml").read_text())
    (rules / "rankwatch-mine.yml").write_text("kind: PrometheusRule\n")
    list(write_forms(CONFIG, dashboards=(), directory=made))
    assert {path.name for path in rules.iterdir()} == {*names, "rankwatch-mine.yml"}


def test_dashboards(made: Path) -> None:
    """Each as one ConfigMap of less than 200 KiB and one GrafanaDashboard, with all it holds."""
    plain = {path.stem: json.loads(path.read_text()) for path in (made / "plain").glob("*.json")}
    assert plain
    for name, dashboard in plain.items():
        path = made / "kubernetes" / "config-maps" / f"{name}.yml"
        found = _load(path)
        kubernetes_validate.validate(found, "1.27", strict=True)
        assert path.stat().st_size < 200 * 1024
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(found["data"][f"{name}.json"]) == dashboard
        operated = _load(made / "kubernetes" / "grafana-operator" / f"{name}.yml")
        assert operated["kind"] == "GrafanaDashboard"
        assert operated["spec"]["instanceSelector"] == {"matchLabels": {"dashboards": "grafana"}}
        assert json.loads(operated["spec"]["json"]) == dashboard


def test_every_alert_is_one_of_grafana(made: Path) -> None:
    """Expression, durations, severity and links survive; names are unique, as Grafana wants them."""
    groups = _load(made / "grafana-alerts" / "rankwatch.yml")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    plain = [rule for group in _plain_groups(made, "alerts") for rule in group["rules"]]
    assert len(rules) == len(plain)
    for found, source in zip(rules, plain, strict=True):
        asked, present = found["data"]
        assert asked["model"]["expr"] == source["expr"]
        assert (asked["model"]["instant"], asked["datasourceUid"]) == (True, "rankwatch")
        assert (found["condition"], present["refId"], present["model"]["type"]) == ("B", "B", "math")
        assert (found["for"], found["keepFiringFor"]) == (source["for"], source["keep_firing_for"])
        assert found["labels"] == {**source["labels"], "alert": source["alert"]}
        assert found["annotations"].keys() == source["annotations"].keys()
    for name in ("title", "uid"):
        assert max(Counter(each[name] for each in rules).values()) == 1
    assert all(len(each["uid"]) <= 40 for each in rules)


def test_templates_of_grafana() -> None:
    """In labels Grafana looks for variables of the environment, in texts not; the value is the query's."""
    rule = {
        "alert": "A",
        "expr": "up == 0",
        "for": "30s",
        "keep_firing_for": "5m",
        "labels": {"severity": "critical", "page": "{{ $labels.run }}"},
        "annotations": {"description": "{{ $labels.run }}: {{ $value | humanize }}, {{ $series.Value }}"},
    }
    group = {"name": "g", "interval": "15s", "rules": [rule]}
    recording = {"name": "r", "interval": "1m", "rules": [{"record": "a:b", "expr": "up"}]}
    (found,) = grafana_alerts(CONFIG, [group, recording])["groups"]
    assert found["interval"] == "20s"
    (made_rule,) = found["rules"]
    assert made_rule["labels"]["page"] == "{{ $$labels.run }}"
    description = "{{ $labels.run }}: {{ $values.A.Value | humanize }}, {{ $series.Value }}"
    assert made_rule["annotations"]["description"] == description


def test_models_of_the_sdk(made: Path) -> None:
    """The SDK's own reader of Grafana's API takes each rule, and gives it back without a loss."""
    encoder = JSONEncoder(sort_keys=True)
    of_group = {"folderUID": "f", "ruleGroup": "g", "orgID": 1}
    for group in _load(made / "grafana-alerts" / "rankwatch.yml")["groups"]:
        for rule in group["rules"]:
            model = {**of_group, "keep_firing_for": rule.pop("keepFiringFor"), **rule}
            assert json.loads(encoder.encode(Rule.from_json(model))) == model


@pytest.mark.parametrize(
    "line",
    [
        "prometheus_rule_labels = {release = 'my release'}",
        "dashboard_labels = {'-' = '1'}",
        "grafana_folder = 'a/b'",
        "grafana_datasource_uid = ''",
    ],
)
def test_wrong_setting(line: str, tmp_path: Path) -> None:
    """One sentence names it."""
    file = tmp_path / "rules.toml"
    file.write_text(line)
    with pytest.raises(SettingError, match=f"could not use {line.split()[0]}"):
        load_config(file)


FULL = replace(
    CONFIG,
    slack_api_url_file="/secrets/slack",
    slack_channels={"page": "#on-call"},
    pagerduty_routing_key_files={"page": "/secrets/pagerduty"},
    email_to={"ticket": "gpu@example.com"},
    contact_email_domains=("example.com",),
)


def test_alertmanager_config() -> None:
    """Route for route and matcher for matcher what Alertmanager reads, with secrets from the Secret."""
    made, plain = alertmanager_config_object(FULL), fragments(FULL)
    assert "{{ template" not in yaml.safe_dump(made, width=math.inf)
    assert made["kind"] == "AlertmanagerConfig"
    spec = made["spec"]
    assert _words(spec["inhibitRules"]) == _words(plain["inhibit_rules"])
    assert _words(spec["route"]) == _words(plain["routes"][0])
    assert [each["name"] for each in spec["receivers"]] == [each["name"] for each in plain["receivers"]]
    page = next(each for each in spec["receivers"] if each["name"] == "rankwatch-page")
    assert page["slackConfigs"][0]["apiURL"] == {"name": "rankwatch-notifications", "key": "slack"}
    key = page["pagerdutyConfigs"][0]["routingKey"]
    assert key == {"name": "rankwatch-notifications", "key": "pagerduty"}
    (hours,) = spec["muteTimeIntervals"]
    assert hours["timeIntervals"][0]["times"] == [{"startTime": "08:00", "endTime": "18:00"}]


def _words(part: Any) -> list[str]:
    """All values, in order, with matchers as Alertmanager writes them."""
    match part:
        case {"matchType": kind, "name": name, "value": value}:
            return [f'{name}{kind}"{value}"']
        case dict() | list():
            values = part.values() if isinstance(part, dict) else part
            return [word for each in values for word in _words(each)]
        case _:
            return [str(part)]


def test_alertmanager_config_elsewhere() -> None:
    """The object knows no time zone: tickets go out at all hours rather than at wrong ones."""
    made = json.dumps(alertmanager_config_object(replace(FULL, ticket_time_zone="Europe/Berlin")))
    assert "activeTimeIntervals" not in made and "muteTimeIntervals" not in made


@pytest.mark.process
def test_whole_texts(tmp_path: Path) -> None:
    """The texts in the object, which can bring no file of templates, say what the templates say."""
    alert = {
        "labels": {"alertname": "RankwatchRunSlow", "product": "rankwatch", "severity": "critical",
                   "run": "r", "cluster": "c", "rank": "3", "cause": "slow_rank"},
        "annotations": {"description": "a < b", "causes": "x 3%", "runbook_url": "https://wiki.test/r"},
        "startsAt": "2026-11-23T09:30:00Z",
    }  # fmt: skip
    config = replace(FULL, pagerduty_routing_key_files={}, email_to={}, contact_email_domains=())
    plain = alertmanager_config(config)
    whole = json.loads(json.dumps(plain))
    for receiver in whole["receivers"]:
        for slack in receiver.get("slack_configs", ()):
            slack |= {name: whole_text(text, config) for name, text in slack.items() if isinstance(text, str)}
    del whole["templates"]
    assert _sent(plain, alert, tmp_path / "plain") == _sent(whole, alert, tmp_path / "whole")


def _sent(config: dict[str, Any], alert: dict[str, Any], folder: Path) -> Any:
    """What Slack gets."""
    folder.mkdir()
    with web_server() as (url, posted):
        (folder / "slack").write_text(f"{url}/slack")
        for receiver in config["receivers"]:
            for slack in receiver.get("slack_configs", ()):
                slack["api_url_file"] = str(folder / "slack")
        config["route"]["routes"][0]["group_wait"] = "1s"
        with alertmanager(config, folder) as base:
            post_json(f"{base}/api/v2/alerts", [alert])
            return poll(lambda: posted.get("/slack"), 60, "the notification")
