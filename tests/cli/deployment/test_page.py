"""docs/deploy.md and docs/systemd.md tell of everything there is, and what they print works."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from rankwatch_cli.deployment.names import AGENT, SCRAPE_TLS_SECRET, TLS_SECRET
from rankwatch_cli.deployment.tiers import TIERS
from rankwatch_cli.deployment.values import Values
from support.deploy.manifests import DEPLOY, KUBERNETES, ROOT, by_identity, pod, printed, rendered
from support.servers.prometheus import require

PAGE = (ROOT / "docs" / "deploy.md").read_text()
SYSTEMD = (ROOT / "docs" / "systemd.md").read_text()


def block(page: str, language: str, beginning: str) -> str:
    """The code that begins like this; there must be one."""
    (found,) = re.findall(rf"```{language}\n({re.escape(beginning)}.*?)```", page, flags=re.DOTALL)
    return str(found)


def test_every_tier_has_its_row() -> None:
    """In the order of the command's help, and no other."""
    assert re.findall(r"^\| `([a-z-]+)` \|", PAGE, flags=re.MULTILINE) == list(TIERS)


def test_a_tier_names_those_it_requires() -> None:
    """In its row."""
    rows = dict(re.findall(r"^\| `([a-z-]+)` \|(.*)$", PAGE, flags=re.MULTILINE))
    for tier in TIERS.values():
        assert all(f"`{name}`" in rows[tier.name] for name in tier.requires), tier.name


def test_every_drop_in_is_told_of() -> None:
    """By its name."""
    assert all(f"`{path.stem}`" in SYSTEMD for path in (DEPLOY / "drop-ins").iterdir())


def test_the_versions_of_kubernetes_are_those_of_the_tests() -> None:
    """The newest schemas at hand among them."""
    assert f"Kubernetes 1.27 and {kubernetes_validate.latest_version().removesuffix('.0')}" in PAGE


def test_prometheus_takes_the_scrape_without_an_operator(tmp_path: Path) -> None:
    """Beside the rule files. Debian's build knows no Kubernetes, so it is given a target instead."""
    require("promtool")
    text = block(PAGE, "yaml", "scrape_configs:")
    for path in (ROOT / "alerts" / "generated").glob("*.rules.yml"):
        (tmp_path / path.name).write_text(path.read_text())
    known = re.sub(r"kubernetes_sd_configs: .*", 'static_configs: [{targets: ["127.0.0.1:9477"]}]', text)
    (tmp_path / "prometheus.yml").write_text(known)
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_trainer_is_told_to_mount_what_the_agent_mounts() -> None:
    """The same directory of the node, at the same path."""
    trainer = yaml.safe_load(block(PAGE, "yaml", "volumeMounts:"))
    (volume,) = [each for each in pod()["volumes"] if each["name"] == "black-boxes"]
    assert trainer["volumes"][0]["hostPath"] == volume["hostPath"]
    assert trainer["volumeMounts"][0]["mountPath"] == volume["hostPath"]["path"]


def test_the_claim_for_guarded_namespaces_is_of_the_same_directory() -> None:
    """Volume and claim name each other, and fit the schemas of Kubernetes."""
    volume, claim = yaml.safe_load_all(block(PAGE, "yaml", "apiVersion: v1\nkind: PersistentVolume\n"))
    for each in (volume, claim):
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
    (mounted,) = [each for each in pod()["volumes"] if each["name"] == "black-boxes"]
    assert volume["spec"]["hostPath"] == mounted["hostPath"]
    named = {name: claim["metadata"][name] for name in ("namespace", "name")}
    assert volume["spec"]["claimRef"] == named
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    for name in ("storageClassName", "accessModes"):
        assert claim["spec"][name] == volume["spec"][name]


def test_the_patches_for_an_overlay_do_what_the_values_do(tmp_path: Path) -> None:
    """Rendered by kustomize over the base and the monitoring."""
    shutil.copytree(KUBERNETES, tmp_path / "tree")
    chosen = {
        "resources": ["tree/base", "tree/monitoring"],
        **yaml.safe_load(block(PAGE, "yaml", "patches:")),
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(chosen))
    values = Values(
        monitor_labels={"release": "prometheus"},
        monitoring_namespace="obs",
        tolerations=(*Values.tolerations, "dedicated"),
        image_pull_secrets=("regcred",),
    )
    assert by_identity(rendered(tmp_path)) == by_identity(printed(values))


def test_the_certificates_go_into_the_secrets_that_are_mounted() -> None:
    """Under the name that Prometheus checks."""
    served, shown = yaml.safe_load_all(block(PAGE, "yaml", "apiVersion: cert-manager.io/v1"))
    assert (served["spec"]["secretName"], served["spec"]["dnsNames"]) == (TLS_SECRET, [AGENT])
    assert shown["spec"]["secretName"] == SCRAPE_TLS_SECRET
    assert {each["metadata"]["namespace"] for each in (served, shown)} == {Values.namespace}


def test_systemd_takes_every_drop_in_of_its_page(tmp_path: Path) -> None:
    """Together with the unit."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "rankwatch-agent.service"
    program = "/opt/rankwatch/bin/rankwatch"
    unit.write_text((DEPLOY / unit.name).read_text().replace(program, "/bin/true"))
    drop_ins = re.findall(r"```ini\n(.*?)```", SYSTEMD, flags=re.DOTALL)
    assert len(drop_ins) == 2
    (tmp_path / f"{unit.name}.d").mkdir()
    for number, text in enumerate(drop_ins):
        (tmp_path / f"{unit.name}.d" / f"{number}.conf").write_text(text)
    command = ["systemd-analyze", "verify", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
