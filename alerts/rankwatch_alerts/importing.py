"""Settings of the objects in which Kubernetes and Grafana take rules and dashboards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rankwatch.settings import expect


@dataclass(frozen=True, kw_only=True)
class Importing:
    """Labels and names that make an operator, a sidecar or Grafana take what is generated."""

    prometheus_rule_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the PrometheusRule objects. An operator takes those that its `ruleSelector` matches; that of
    kube-prometheus-stack wants `release = "NAME"`."""
    dashboard_labels: Mapping[str, str] = field(default_factory=lambda: {"grafana_dashboard": "1"})
    """Labels of the ConfigMaps of dashboards, by which the sidecar of Grafana finds them."""
    grafana_instance_labels: Mapping[str, str] = field(default_factory=lambda: {"dashboards": "grafana"})
    """Labels of the Grafana to which the Grafana operator gives the dashboards."""
    grafana_folder: str = "Rankwatch"
    """Folder of dashboards and alerts in Grafana."""
    grafana_datasource_uid: str = "rankwatch"
    """Uid of the Prometheus data source that alerts of Grafana ask."""

    def check_importing(self) -> None:
        """Raise FieldError for what Kubernetes or Grafana would refuse."""
        for name in ("prometheus_rule_labels", "dashboard_labels", "grafana_instance_labels"):
            given = getattr(self, name)
            valid = all(_KEY.fullmatch(key) and _VALUE.fullmatch(value) for key, value in given.items())
            expect(self, name, valid, "labels of Kubernetes")
        folder, uid = self.grafana_folder, self.grafana_datasource_uid
        plain = bool(folder) and folder.isprintable() and not set(folder) & set("$/\\")
        expect(self, "grafana_folder", plain, "a name without $ and slashes")
        expect(self, "grafana_datasource_uid", bool(_UID.fullmatch(uid)), "a uid of Grafana")


_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME}")
_VALUE = re.compile(rf"({_NAME})?")
_UID = re.compile(r"[A-Za-z0-9_-]{1,40}")
