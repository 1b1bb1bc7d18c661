"""Objects of Kubernetes that carry rules and dashboards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rankwatch_alerts import RuleConfig, to_yaml

MOST_BYTES = 200 * 1024
"""Of one object. `kubectl apply` copies it into an annotation, and annotations end at 256 KiB."""
_LABELS = {"app.kubernetes.io/name": "rankwatch"}


def prometheus_rules(
    config: RuleConfig, name: str, groups: Sequence[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The groups of a rule file as objects of the Prometheus operator, as few as their size allows.

    Raises ValueError for a group that is too large for an object of its own.
    """
    parts: list[list[dict[str, Any]]] = [[]]
    filled = 0
    for group in groups:
        size = len(to_yaml({"groups": [group]}).encode())
        if size > MOST_BYTES:
            raise ValueError(
                f"could not write a PrometheusRule of group {group['name']}: over {MOST_BYTES} bytes"
            )
        if filled + size > MOST_BYTES:
            parts.append([])
            filled = 0
        parts[-1].append(group)
        filled += size
    for number, part in enumerate(parts, start=1):
        yield {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {
                "name": f"rankwatch-{name}-{number}",
                "labels": {**_LABELS, **config.prometheus_rule_labels},
            },
            "spec": {"groups": part},
        }


def config_map(config: RuleConfig, dashboard: dict[str, Any]) -> dict[str, Any]:
    """A dashboard for the sidecar of Grafana, which takes ConfigMaps with its label."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": dashboard["uid"],
            "labels": {**_LABELS, **config.dashboard_labels},
            "annotations": {"grafana_folder": config.grafana_folder},
        },
        "data": {f"{dashboard['uid']}.json": _compact(dashboard)},
    }


def grafana_dashboard(config: RuleConfig, dashboard: dict[str, Any]) -> dict[str, Any]:
    """A dashboard for the Grafana operator."""
    return {
        "apiVersion": "grafana.integreatly.org/v1beta1",
        "kind": "GrafanaDashboard",
        "metadata": {"name": dashboard["uid"], "labels": dict(_LABELS)},
        "spec": {
            "folder": config.grafana_folder,
            "instanceSelector": {"matchLabels": dict(config.grafana_instance_labels)},
            "json": _compact(dashboard),
        },
    }


def _compact(dashboard: dict[str, Any]) -> str:
    return json.dumps(dashboard, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
