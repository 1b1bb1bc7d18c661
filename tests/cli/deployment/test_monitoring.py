"""PodMonitor, PrometheusRules and dashboards."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankwatch_alerts import RuleConfig
from rankwatch_cli.deployment.values import Values
from support.deploy.manifests import KUBERNETES, ROOT, printed
from support.servers.prometheus import require

RULES = ROOT / "alerts" / "generated"
DASHBOARDS = ROOT / "dashboards" / "generated"


@pytest.fixture(scope="module")
def objects() -> dict[str, list[dict[str, Any]]]:
    """Kind -> objects, with a label for the operator."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in printed(Values(monitor_labels={"release": "prometheus"})):
        found.setdefault(each["kind"], []).append(each)
    return found


def test_agents_are_scraped_under_the_job_that_the_rules_look_for(objects: dict[str, Any]) -> None:
    """With the interval that their windows count on; a node keeps its series when its pod is replaced."""
    (monitor,) = objects["PodMonitor"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    relabelings = {each.get("targetLabel"): each for each in endpoint["relabelings"]}
    assert relabelings["job"] == {"targetLabel": "job", "replacement": RuleConfig().agent_job}
    assert f'job="{RuleConfig().agent_job}"' in (RULES / "alerts.rules.yml").read_text()
    assert relabelings["instance"]["sourceLabels"] == ["__meta_kubernetes_pod_node_name"]
    dropped = next(each["regex"] for each in endpoint["relabelings"] if each.get("action") == "labeldrop")
    assert {
        name for name in ("pod", "container", "node", "instance", "job") if re.fullmatch(dropped, name)
    } == {
        "pod",
        "container",
    }
    assert (endpoint["interval"], endpoint["scrapeTimeout"]) == ("15s", "10s")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_it_selects_the_pods_of_the_daemonset(objects: dict[str, Any]) -> None:
    """In its own namespace, by labels the pods carry, on a port they name."""
    (monitor,), (agents,) = objects["PodMonitor"], objects["DaemonSet"]
    assert monitor["metadata"]["namespace"] == agents["metadata"]["namespace"]
    template = agents["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    ports = {each["name"] for each in template["spec"]["containers"][0]["ports"]}
    assert {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]} <= ports


@pytest.mark.parametrize("name", ["recording", "alerts"])
def test_the_rules_are_those_of_the_rule_files(name: str, objects: dict[str, Any]) -> None:
    """Group for group."""
    (found,) = [each for each in objects["PrometheusRule"] if each["metadata"]["name"] == f"rankwatch-{name}"]
    expected = yaml.safe_load((RULES / f"{name}.rules.yml").read_text())
    assert found["spec"] == expected
    assert found["apiVersion"] == "monitoring.coreos.com/v1"
    allowed = {"record", "alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
    for group in found["spec"]["groups"]:
        assert set(group) <= {"name", "interval", "limit", "rules"}
        assert all(set(rule) <= allowed for rule in group["rules"])


def test_prometheus_takes_the_groups_of_the_objects(objects: dict[str, Any], tmp_path: Path) -> None:
    """promtool reads each spec as a rule file, which is what the operator makes of it."""
    require("promtool")
    paths = []
    for each in objects["PrometheusRule"]:
        paths.append(tmp_path / f"{each['metadata']['name']}.yml")
        paths[-1].write_text(yaml.safe_dump(each["spec"]))
    command = ["promtool", "check", "rules", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_dashboard_is_a_config_map_for_the_sidecar(objects: dict[str, Any]) -> None:
    """Byte for byte, and small enough for an annotation of kubectl apply."""
    found = {name: text for each in objects["ConfigMap"] for name, text in each["data"].items()}
    assert found == {path.name: path.read_text() for path in DASHBOARDS.glob("*.json")}
    for each in objects["ConfigMap"]:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(each)) < 256 * 1024


def test_the_monitoring_folder_holds_what_needs_the_operator_and_nothing_else() -> None:
    """A cluster without its kinds would refuse the whole base."""
    kinds = {yaml.safe_load(path.read_text())["kind"] for path in (KUBERNETES / "base").glob("*.yaml")}
    assert not kinds & {"PodMonitor", "PrometheusRule"}
