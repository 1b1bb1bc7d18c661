"""docs/deploy.md tells of everything there is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import kubernetes_validate
import yaml

from rankwatch_agent.deployment.tiers import TIERS
from support_deployment import DEPLOY, ROOT, pod
from support_prometheus import require

PAGE = (ROOT / "docs" / "deploy.md").read_text()


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
    assert all(f"`{path.stem}`" in PAGE for path in (DEPLOY / "drop-ins").iterdir())


def test_the_versions_of_kubernetes_are_those_of_the_tests() -> None:
    """The newest schemas at hand among them."""
    assert f"Kubernetes 1.27 and {kubernetes_validate.latest_version().removesuffix('.0')}" in PAGE


def test_prometheus_takes_the_scrape_without_an_operator(tmp_path: Path) -> None:
    """Beside the rule files. Debian's build knows no Kubernetes, so it is given a target instead."""
    require("promtool")
    (text,) = re.findall(r"```yaml\n(scrape_configs:.*?)```", PAGE, flags=re.DOTALL)
    for path in (ROOT / "alerts" / "generated").glob("*.rules.yml"):
        (tmp_path / path.name).write_text(path.read_text())
    known = re.sub(r"kubernetes_sd_configs: .*", 'static_configs: [{targets: ["127.0.0.1:9477"]}]', text)
    (tmp_path / "prometheus.yml").write_text(known)
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_trainer_is_told_to_mount_what_the_agent_mounts() -> None:
    """The same directory of the node, at the same path."""
    (text,) = re.findall(r"```yaml\n(volumeMounts:.*?)```", PAGE, flags=re.DOTALL)
    trainer = yaml.safe_load(text)
    (volume,) = [each for each in pod()["volumes"] if each["name"] == "black-boxes"]
    assert trainer["volumes"][0]["hostPath"] == volume["hostPath"]
    assert trainer["volumeMounts"][0]["mountPath"] == volume["hostPath"]["path"]
