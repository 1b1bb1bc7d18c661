"""PodMonitor, ServiceMonitor, Service, PrometheusRules and dashboards."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankwatch_alerts import RuleConfig
from support.deploy.chart import CHART, MONITORING, NAME, ROOT, TLS, endpoint, helm, merged, one, render

pytestmark = pytest.mark.process

RULES = ROOT / "alerts" / "generated"
DASHBOARDS = ROOT / "dashboards" / "generated"
POD_MONITOR = {"monitor": {"enabled": True}}
SERVICE_MONITOR = {"monitor": {"enabled": True, "kind": "ServiceMonitor"}}
LIMITS = {
    "sampleLimit": 5_000_000,
    "labelLimit": 30,
    "labelNameLengthLimit": 100,
    "labelValueLengthLimit": 200,
    "targetLimit": 4000,
}
ENDPOINT_FIELDS = {
    *("port", "path", "interval", "scrapeTimeout", "scheme", "tlsConfig", "authorization"),
    *("relabelings", "metricRelabelings"),
}
"""Fields of the operator's endpoints that we use; it has no schema here, so its reference was read."""
LINKS = {"runbook_url", "dashboard_url"}


def rules(name: str, values: dict[str, Any]) -> dict[str, Any]:
    (found,) = [
        each
        for each in render(values)
        if each["kind"] == "PrometheusRule" and each["metadata"]["name"] == f"{NAME}-{name}"
    ]
    return found


def test_scrape() -> None:
    """Under the job and at the interval that the rules count on; a node keeps its series."""
    found = endpoint()
    relabelings = {each.get("targetLabel"): each for each in found["relabelings"]}
    assert relabelings["job"] == {"targetLabel": "job", "replacement": RuleConfig().agent_job}
    assert f'job="{RuleConfig().agent_job}"' in (RULES / "alerts.rules.yml").read_text()
    assert relabelings["instance"]["sourceLabels"] == ["__meta_kubernetes_pod_node_name"]
    assert found["interval"] == f"{RuleConfig().scrape_interval_seconds:g}s"
    assert found["scrapeTimeout"] == "10s"


@pytest.mark.parametrize(
    ("values", "dropped"),
    [(POD_MONITOR, {"pod", "container"}), (SERVICE_MONITOR, {"pod", "container", "service"})],
)
def test_labels_of_the_pod_are_dropped(values: dict[str, Any], dropped: set[str]) -> None:
    """They change with every pod, and our own labels stay."""
    (monitor,) = [each for each in render(values) if each["kind"].endswith("Monitor")]
    (found,) = monitor["spec"].get("podMetricsEndpoints") or monitor["spec"]["endpoints"]
    regex = next(each["regex"] for each in found["relabelings"] if each.get("action") == "labeldrop")
    names = ("pod", "container", "service", "node", "instance", "job", "run")
    assert {name for name in names if re.fullmatch(regex, name)} == dropped


@pytest.mark.parametrize("values", [POD_MONITOR, SERVICE_MONITOR], ids=["pods", "service"])
def test_shape_of_a_monitor(values: dict[str, Any]) -> None:
    """Only fields that the operator knows; the pods are found by labels they carry, on a port they name."""
    relabeling = {"sourceLabels": ["__meta_kubernetes_node_label_pool"], "targetLabel": "pool"}
    more = {
        "labels": {"release": "prometheus"},
        "relabelings": [relabeling],
        "metricRelabelings": [{"action": "drop", "sourceLabels": ["__name__"], "regex": "x_.*"}],
        **LIMITS,
    }
    objects = {each["kind"]: each for each in render(values, {"monitor": more}, TLS)}
    kind = values["monitor"].get("kind", "PodMonitor")
    monitor, agents = objects[kind], objects["DaemonSet"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    endpoints = "podMetricsEndpoints" if kind == "PodMonitor" else "endpoints"
    spec = monitor["spec"]
    assert set(spec) == {"selector", "namespaceSelector", endpoints, *LIMITS}
    assert {name: spec[name] for name in LIMITS} == LIMITS
    (found,) = spec[endpoints]
    assert set(found) <= ENDPOINT_FIELDS
    assert found["relabelings"][-1] == relabeling
    assert found["metricRelabelings"] == more["metricRelabelings"]
    assert spec["namespaceSelector"] == {"matchNames": [agents["metadata"]["namespace"]]}
    selected = agents["spec"]["template"] if kind == "PodMonitor" else objects["Service"]
    assert spec["selector"]["matchLabels"].items() <= selected["metadata"]["labels"].items()
    port, _ = agents["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert found["port"] == port["name"]


def test_service() -> None:
    """Headless unless told otherwise, and with the agents that are not ready: those are to be looked at."""
    spec = one("Service", {"service": {"enabled": True}})["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    template = one("DaemonSet")["spec"]["template"]
    assert spec["selector"].items() <= template["metadata"]["labels"].items()
    local = {"enabled": True, "clusterIP": "", "internalTrafficPolicy": "Local", "annotations": {"a": "b"}}
    chosen = one("Service", {"service": local})
    assert "clusterIP" not in chosen["spec"]
    assert chosen["spec"]["internalTrafficPolicy"] == "Local"
    assert chosen["metadata"]["annotations"] == {"a": "b"}
    assert "Service" not in {each["kind"] for each in render(POD_MONITOR)}


@pytest.mark.parametrize("name", ["recording", "alerts"])
def test_rules(name: str) -> None:
    """Group for group those of the rule files, with fields that the operator knows."""
    values = {"prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}}}
    found = rules(name, values)
    expected = yaml.safe_load((RULES / f"{name}.rules.yml").read_text())
    for rule in (rule for group in expected["groups"] for rule in group["rules"] if "alert" in rule):
        rule["annotations"] = {key: text for key, text in rule["annotations"].items() if key not in LINKS}
    assert found["spec"] == expected
    assert found["metadata"]["labels"]["release"] == "prometheus"
    allowed = {"record", "alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
    for group in found["spec"]["groups"]:
        assert set(group) <= {"name", "interval", "limit", "rules"}
        assert all(set(rule) <= allowed for rule in group["rules"])


@pytest.mark.parametrize(
    ("values", "links"),
    [
        ({}, set()),
        ({"runbookBaseUrl": "https://wiki.test/rw/"}, {"runbook_url"}),
        ({"dashboardBaseUrl": "https://grafana.test"}, {"dashboard_url"}),
    ],
)
def test_links(values: dict[str, str], links: set[str]) -> None:
    """Alerts link to where the values say, and nowhere else."""
    groups = rules("alerts", {"prometheusRule": {"enabled": True, **values}})["spec"]["groups"]
    shown = [rule for group in groups for rule in group["rules"]]
    assert shown
    for rule in shown:
        annotations = rule["annotations"]
        assert LINKS & annotations.keys() == links
        below = tuple(f"{each.rstrip('/')}/" for each in values.values())
        assert all(annotations[each].startswith(below) for each in links)
        assert annotations.get("runbook_url", rule["alert"]).endswith(rule["alert"])


def test_rules_of_ones_own(tmp_path: Path) -> None:
    """A file generated with other settings takes the place of the chart's, and the other stays."""
    own = "groups:\n- name: mine\n  rules:\n  - record: a:b\n    expr: sum(up)\n"
    (tmp_path / "alerts.yml").write_text(own)
    flags = ["--set", "prometheusRule.enabled=true", "--show-only", "templates/prometheusrule.yaml"]
    flags += ["--set-file", f"prometheusRule.alerts={tmp_path / 'alerts.yml'}"]
    done = helm("template", NAME, str(CHART), *flags)
    assert done.returncode == 0, done.stderr
    recording, alerts = (each["spec"] for each in yaml.safe_load_all(done.stdout))
    assert alerts == yaml.safe_load(own)
    assert recording == yaml.safe_load((RULES / "recording.rules.yml").read_text())


def test_dashboards() -> None:
    """Each is a ConfigMap for the sidecar, byte for byte, and small enough for kubectl apply."""
    values = {"dashboards": {"enabled": True, "annotations": {"grafana_folder": "rankwatch"}}}
    maps = [each for each in render(values) if each["kind"] == "ConfigMap"]
    found = {name: text for each in maps for name, text in each["data"].items()}
    assert found == {path.name: path.read_text() for path in DASHBOARDS.glob("*.json")}
    for each in maps:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "rankwatch"}
        assert len(json.dumps(each)) < 256 * 1024


def test_other_namespaces() -> None:
    """Operators and sidecars that watch their own namespace only find the objects there."""
    elsewhere = {name: {"namespace": "observability"} for name in MONITORING}
    kinds = {"PodMonitor", "PrometheusRule", "ConfigMap"}
    for each in render(MONITORING, elsewhere):
        expected = "observability" if each["kind"] in kinds else "rankwatch"
        assert each["metadata"]["namespace"] == expected
    monitor = one("PodMonitor", MONITORING, elsewhere)
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["rankwatch"]}


def test_without_an_operator() -> None:
    """A cluster without its kinds would refuse the whole release, so none is there by default."""
    assert not {each["kind"] for each in render()} & {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
    assert merged(POD_MONITOR, SERVICE_MONITOR) == SERVICE_MONITOR
