"""Rules and dashboards in the forms in which Kubernetes and Grafana import them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankwatch_alerts import RuleConfig, alert_groups, recording_groups
from rankwatch_alerts.generation import remove_generated, rule_file, write_yaml
from rankwatch_dashboards.forms.alertmanager_config import alertmanager_config_object
from rankwatch_dashboards.forms.grafana_alerts import grafana_alerts
from rankwatch_dashboards.forms.kubernetes import config_map, grafana_dashboard, prometheus_rules

__all__ = ["write_forms"]


def write_forms(config: RuleConfig, *, dashboards: Sequence[Path], directory: Path) -> Iterator[Path]:
    """Write each form of the rules and of these dashboards into folders below `directory`; yields the paths.

    `kubernetes`: PrometheusRule objects, an AlertmanagerConfig, and of each dashboard a ConfigMap for the
    sidecar of Grafana and a GrafanaDashboard for the Grafana operator. `grafana-alerts`: the alerts for
    Grafana's own evaluation, a file for its folder `provisioning/alerting`; use it instead of the alerts of
    Prometheus, not with them.

    Raises OSError where the directory cannot be written, and ValueError for a group of rules that is larger
    than Kubernetes takes.
    """
    kubernetes = directory / "kubernetes"
    remove_generated(kubernetes / "rules", "rankwatch-*.yml")
    alerts = rule_file(config, alert_groups(config))["groups"]
    for kind, groups in (
        ("recording", rule_file(config, recording_groups(config))["groups"]),
        ("alerts", alerts),
    ):
        for each in prometheus_rules(config, kind, groups):
            yield write_yaml(kubernetes / "rules" / f"{each['metadata']['name']}.yml", each)
    yield write_yaml(directory / "grafana-alerts" / "rankwatch.yml", grafana_alerts(config, alerts))
    yield write_yaml(kubernetes / "alertmanager-config.yml", alertmanager_config_object(config))
    for file in dashboards:
        dashboard = json.loads(file.read_text(encoding="utf-8"))
        name = f"{file.stem}.yml"
        yield write_yaml(kubernetes / "config-maps" / name, config_map(config, dashboard))
        yield write_yaml(kubernetes / "grafana-operator" / name, grafana_dashboard(config, dashboard))
