"""Rules and dashboards in the forms in which Kubernetes and Grafana import them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rankwatch_alerts import RuleConfig, to_yaml
from rankwatch_dashboards.forms.alertmanager_config import alertmanager_config_object
from rankwatch_dashboards.forms.grafana_alerts import grafana_alerts
from rankwatch_dashboards.forms.kubernetes import config_map, grafana_dashboard, prometheus_rules

__all__ = ["write_forms"]


def write_forms(
    config: RuleConfig, *, rules: Sequence[Path], dashboards: Sequence[Path], directory: Path
) -> Iterator[Path]:
    """Write each form of these rule files and dashboards into folders below `directory`; yields the paths.

    `kubernetes`: PrometheusRule objects, an AlertmanagerConfig, and of each dashboard a ConfigMap for the
    sidecar of Grafana and a GrafanaDashboard for the Grafana operator. `grafana-alerts`: the alerts for
    Grafana's own evaluation, a file for its folder `provisioning/alerting`; use it instead of the alerts of
    Prometheus, not with them.

    Raises OSError where the directory cannot be written, and ValueError for a group of rules that is larger
    than Kubernetes takes. Needs PyYAML and the SDK.
    """
    import yaml

    for file in rules:
        groups = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
        for each in prometheus_rules(config, file.name.partition(".")[0], groups):
            yield _write(directory / "kubernetes" / "rules" / f"{each['metadata']['name']}.yml", each)
        if any("alert" in rule for group in groups for rule in group["rules"]):
            document = grafana_alerts(config, groups)
            yield _write(directory / "grafana-alerts" / "rankwatch.yml", document)
    yield _write(directory / "kubernetes" / "alertmanager-config.yml", alertmanager_config_object(config))
    for file in dashboards:
        dashboard = json.loads(file.read_text(encoding="utf-8"))
        name = f"{file.stem}.yml"
        yield _write(directory / "kubernetes" / "config-maps" / name, config_map(config, dashboard))
        yield _write(
            directory / "kubernetes" / "grafana-operator" / name, grafana_dashboard(config, dashboard)
        )


def _write(path: Path, document: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_yaml(document), encoding="utf-8")
    return path
