"""docs/deploy.md and docs/systemd.md leave nothing out, and what they print works."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rankwatch.conventions import environment
from support.deploy.chart import (
    CHART,
    DEPLOY,
    MUTUAL_TLS,
    NAME,
    NAMESPACE,
    ROOT,
    endpoint,
    helm,
    one,
    pod,
    refusal,
    render,
)
from support.servers.prometheus import accepted

pytestmark = pytest.mark.process

PAGE = (ROOT / "docs" / "deploy.md").read_text()
SYSTEMD = (ROOT / "docs" / "systemd.md").read_text()
TENANT = {"name": environment.TENANT, "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def block(page: str, language: str, beginning: str) -> str:
    """The code that begins like this; there must be one."""
    (found,) = re.findall(rf"```{language}\n({re.escape(beginning)}.*?)```", page, flags=re.DOTALL)
    return str(found)


def commands(word: str) -> list[list[str]]:
    """The arguments of every command on the page that begins with this word."""
    page = PAGE.replace("\\\n", " ")
    lines = re.findall(rf"^(?:\$ )?{word} (.*)$", page, flags=re.MULTILINE)
    return [shlex.split(line) for line in lines]


def test_every_privilege_has_a_row() -> None:
    """And a row that names those it brings."""
    rows = dict(re.findall(r"^\| `privileges\.(\w+)` \|(.*)$", PAGE, flags=re.MULTILINE))
    assert set(rows) == set(SCHEMA["properties"]["privileges"]["properties"])
    brought = {
        "privileged": "kernelLog",
        **dict.fromkeys(("pods", "kernelLog", "blackBoxes", "userFiles"), "root"),
    }
    for name, brings in (*brought.items(), ("stacks", "root"), ("stacks", "processes")):
        assert f"`privileges.{brings}`" in rows[name]


def test_values_on_the_page_exist() -> None:
    """Each dotted name in backticks is a value of the chart."""
    sections = "|".join(SCHEMA["properties"])
    for name in re.findall(rf"`((?:{sections})\.[\w.]+)", PAGE):
        node = SCHEMA
        for part in name.split("."):
            assert part in node.get("properties", {}) or "properties" not in node, name
            node = node.get("properties", {}).get(part, {})


def test_helm_commands() -> None:
    """Helm takes the flags of each, on a cluster that is not asked."""
    found = [each for each in commands("helm") if each[0] in ("install", "upgrade")]
    assert len(found) == 4
    for _, *arguments in found:
        flags = [each for each in arguments if each != "--reuse-values"]
        if "my.values.yaml" in flags:
            continue
        done = helm("template", *flags)
        assert done.returncode == 0, done.stderr


def test_sample_values() -> None:
    """They go together, and bring what they say."""
    values = yaml.safe_load(block(PAGE, "yaml", "image: "))
    kinds = {each["kind"] for each in render(values)}
    assert kinds >= {"DaemonSet", "PodMonitor", "PrometheusRule", "ConfigMap", "NetworkPolicy"}


def test_printed_refusal() -> None:
    """It is what helm prints."""
    printed = block(PAGE, "console", "$ helm template").split("\n", 1)[1].strip()
    assert refusal({"privileges": {"kernellog": True}}).strip() == printed


def test_every_drop_in_is_named() -> None:
    """On the page of systemd."""
    assert all(f"`{path.stem}`" in SYSTEMD for path in (DEPLOY / "drop-ins").iterdir())


def test_versions() -> None:
    """Those of the tests, the newest schemas at hand among them."""
    newest = kubernetes_validate.latest_version().removesuffix(".0")
    assert re.search(rf"Kubernetes 1\.27 and {re.escape(newest)}\b", PAGE)


def test_scrape_without_an_operator(tmp_path: Path) -> None:
    """Prometheus takes it. Debian's build knows no Kubernetes, so it is given a target instead."""
    text = block(PAGE, "yaml", "scrape_configs:")
    for path in (ROOT / "alerts" / "generated").glob("*.rules.yml"):
        (tmp_path / path.name).write_text(path.read_text())
    known = re.sub(r"kubernetes_sd_configs: .*", 'static_configs: [{targets: ["127.0.0.1:9477"]}]', text)
    (tmp_path / "prometheus.yml").write_text(known)
    accepted("promtool", "check", "config", tmp_path / "prometheus.yml")


def black_boxes() -> dict[str, Any]:
    (volume,) = [each for each in pod()["volumes"] if each["name"] == "black-boxes"]
    return dict(volume["hostPath"])


def test_the_trainer_mounts_what_the_agent_mounts() -> None:
    """The same directory of the node, at the same path."""
    trainer = yaml.safe_load(block(PAGE, "yaml", "volumeMounts:"))
    assert trainer["volumes"][0]["hostPath"] == black_boxes()
    assert trainer["volumeMounts"][0]["mountPath"] == black_boxes()["path"]


def test_the_trainer_of_a_tenant() -> None:
    """Volume, claim and pod name each other and the tenant's directory, and fit the schemas of Kubernetes."""
    volume, claim = yaml.safe_load_all(block(PAGE, "yaml", "apiVersion: v1\nkind: PersistentVolume\n"))
    trainer = yaml.safe_load(block(PAGE, "yaml", "apiVersion: v1\nkind: Pod\n"))
    for each in (volume, claim, trainer):
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
    tenant, directory = claim["metadata"]["namespace"], black_boxes()["path"]
    assert volume["spec"]["hostPath"] == {**black_boxes(), "path": f"{directory}/{tenant}"}
    assert f"blackBoxes.tenants={{{tenant}," in PAGE
    (mounted,) = trainer["spec"]["volumes"]
    assert mounted["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
    assert trainer["spec"]["containers"][0]["volumeMounts"] == [
        {"name": mounted["name"], "mountPath": directory}
    ]
    assert trainer["metadata"]["namespace"] == tenant
    assert trainer["spec"]["containers"][0]["env"] == [TENANT]
    assert volume["spec"]["claimRef"] == {name: claim["metadata"][name] for name in ("namespace", "name")}
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    for name in ("storageClassName", "accessModes"):
        assert claim["spec"][name] == volume["spec"][name]


def test_a_tenant_by_its_namespace() -> None:
    """Its pods mount the directory that a claim would give them."""
    mounted = yaml.safe_load(block(PAGE, "yaml", "env: "))
    (mount,), (volume,) = mounted["volumeMounts"], mounted["volumes"]
    assert mounted["env"] == [TENANT]
    assert mount["subPathExpr"] == f"$({TENANT['name']})"
    assert (volume["hostPath"], mount["mountPath"]) == (black_boxes(), black_boxes()["path"])


def test_certificates_go_into_the_secrets_that_are_used() -> None:
    """Under the name that Prometheus checks."""
    served, shown = yaml.safe_load_all(block(PAGE, "yaml", "apiVersion: cert-manager.io/v1"))
    tls = endpoint(MUTUAL_TLS)["tlsConfig"]
    assert served["spec"]["secretName"] == tls["ca"]["secret"]["name"]
    assert served["spec"]["dnsNames"] == [tls["serverName"]]
    assert shown["spec"]["secretName"] == tls["keySecret"]["name"]
    assert {each["metadata"]["namespace"] for each in (served, shown)} == {NAMESPACE}


def test_runbooks_find_the_pods() -> None:
    """By the label and the namespace that the chart gives with the release of the page."""
    found = one("DaemonSet")
    labels = found["spec"]["template"]["metadata"]["labels"]
    selector = f"get pod -o name -l app.kubernetes.io/name={NAME} --field-selector"
    page = (ROOT / "runbooks" / "RankwatchRunSlow.md").read_text()
    assert selector in page and f"${{NAMESPACE:={NAMESPACE}}}" in page
    assert labels["app.kubernetes.io/name"] == NAME
    assert commands("helm")[0][1] == NAME
