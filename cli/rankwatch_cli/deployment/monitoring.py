"""What the Prometheus operator and Grafana's sidecar read: scrape, rules and dashboards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankwatch_cli.deployment.names import AGENT, PORT_NAME, SELECTOR, Fields, metadata
from rankwatch_cli.deployment.tiers import chosen_tiers
from rankwatch_cli.deployment.values import Values

_OPERATOR_API = "monitoring.coreos.com/v1"


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """What the generators of rules and dashboards bring."""

    job: str
    """Value of `job` that the rules look for."""
    interval: str
    """Time between two scrapes that the rules count on, as Prometheus writes it."""
    timeout: str
    rules: Mapping[str, Sequence[Fields]]
    """Name -> rule groups."""
    dashboards: Mapping[str, str]
    """Uid -> JSON."""


def pod_monitor(values: Values, monitoring: Monitoring) -> Fields:
    """Scrapes every agent, ready or not, in the way the chosen tiers ask for."""
    endpoint: Fields = {
        "port": PORT_NAME,
        "path": "/metrics",
        "interval": monitoring.interval,
        "scrapeTimeout": monitoring.timeout,
        "relabelings": [
            # The rules look for this job; the operator would call it after namespace and PodMonitor.
            {"targetLabel": "job", "replacement": monitoring.job},
            # A node keeps its series when its pod is replaced, and an alert on a silent agent names it.
            {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"},
            {"action": "labeldrop", "regex": "pod|container|endpoint"},
        ],
    }
    for tier in chosen_tiers(values.tiers):
        for path, value in tier.scrape.items():
            endpoint = _with(endpoint, path.split("/"), value)
    return {
        "apiVersion": _OPERATOR_API,
        "kind": "PodMonitor",
        "metadata": metadata(AGENT, values.namespace, values.monitor_labels),
        "spec": {"selector": {"matchLabels": dict(SELECTOR)}, "podMetricsEndpoints": [endpoint]},
    }


def prometheus_rules(values: Values, monitoring: Monitoring) -> list[Fields]:
    """One object per rule file, with the same groups."""
    return [
        {
            "apiVersion": _OPERATOR_API,
            "kind": "PrometheusRule",
            "metadata": metadata(f"rankwatch-{name}", values.namespace, values.monitor_labels),
            "spec": {"groups": list(groups)},
        }
        for name, groups in monitoring.rules.items()
    ]


def dashboards(values: Values, monitoring: Monitoring) -> list[Fields]:
    """One ConfigMap per dashboard, with the label that Grafana's sidecar looks for by default."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(uid, values.namespace, {"grafana_dashboard": "1"}),
            "data": {f"{uid}.json": text},
        }
        for uid, text in monitoring.dashboards.items()
    ]


def _with(base: Fields, path: Sequence[str], value: object) -> Fields:
    first, *rest = path
    return {**base, first: _with(base[first], rest, value) if rest else value}
