"""What tests of manifests share: objects that Python prints or kustomize renders, and their comparison."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankwatch_cli.commands.manifests import load_monitoring
from rankwatch_cli.deployment.daemonset import daemonset
from rankwatch_cli.deployment.encoding import to_stream
from rankwatch_cli.deployment.manifests import agent_manifests, monitoring_manifests
from rankwatch_cli.deployment.merge import LIST_KEYS
from rankwatch_cli.deployment.monitoring import Monitoring
from rankwatch_cli.deployment.values import Values
from support.paths import ROOT

DEPLOY = ROOT / "agent" / "deploy"
KUBERNETES = DEPLOY / "kubernetes"

monitoring: Any = cache(load_monitoring)
"""Rules and dashboards of the default settings."""


def pod(*tiers: str, **values: Any) -> dict[str, Any]:
    """The pod of the DaemonSet with these tiers, as a cluster would read it."""
    spec: dict[str, Any] = dict(daemonset(Values(tiers=tiers, **values))["spec"]["template"]["spec"])
    return spec


def container(*tiers: str, **values: Any) -> dict[str, Any]:
    """The agent's container."""
    (found,) = pod(*tiers, **values)["containers"]
    return dict(found)


def environment(*tiers: str, **values: Any) -> dict[str, str]:
    """Variables of the agent's container; the node's name as the kubelet would fill it in."""
    return {each["name"]: each.get("value", "node-1") for each in container(*tiers, **values)["env"]}


def printed(values: Values, rules: Monitoring | None = None) -> list[dict[str, Any]]:
    """The objects of `rankwatch manifests --monitoring`, read back from YAML."""
    manifests = agent_manifests(values) + monitoring_manifests(values, rules or monitoring())
    return list(yaml.safe_load_all(to_stream(manifests)))


def rendered(folder: Path) -> list[dict[str, Any]]:
    """What `kubectl kustomize` makes of a folder."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed, so kustomize cannot render")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def by_identity(objects: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Any]:
    """(kind, name) -> object, with lists that have merge keys in the order of these: theirs means nothing."""
    return {(each["kind"], each["metadata"]["name"]): _sorted(each) for each in objects}


def _sorted(value: Any, name: str = "") -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(each, key) for key, each in value.items()}
    if isinstance(value, list):
        parts = [_sorted(each) for each in value]
        keyed = name in LIST_KEYS and all(
            isinstance(each, dict) and LIST_KEYS[name] in each for each in parts
        )
        return sorted(parts, key=lambda each: each[LIST_KEYS[name]]) if keyed else parts
    return value
