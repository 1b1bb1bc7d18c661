"""The objects that `helm template` renders from the chart, and the values that it refuses, and the unit."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.paths import ROOT

DEPLOY = ROOT / "agent" / "deploy"
CHART = DEPLOY / "chart"
KUBERNETES = DEPLOY / "kubernetes"
NAME = "rankwatch-agent"
"""Name of the release in the docs, and of its objects."""
NAMESPACE = "rankwatch"

TLS = {"tls": {"existingSecret": "rankwatch-agent-tls"}}
MUTUAL_TLS = {"tls": {"existingSecret": "rankwatch-agent-tls", "mutual": True}}
TOKEN = {"token": {"existingSecret": "rankwatch-agent-token"}}
MONITORING = {each: {"enabled": True} for each in ("monitor", "prometheusRule", "dashboards")}

Fields = dict[str, Any]


def helm(*arguments: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm with the values on stdin."""
    command = [tool("helm"), *arguments]
    if values is not None:
        command += ["--values", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)


def tool(name: str) -> str:
    """The pinned program that `make tools` fetched. Skips the test without it."""
    fetched = ROOT / ".tools" / name
    if not fetched.exists():
        pytest.skip(f"{name} is not installed: see make tools")
    return str(fetched)


def template(values: Mapping[str, Any], *arguments: str, chart: Path = CHART) -> str:
    """The output of `helm template` for these values."""
    done = helm("template", NAME, str(chart), "--namespace", NAMESPACE, *arguments, values=values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(*parts: Mapping[str, Any]) -> list[Fields]:
    """The objects for these values; later values win."""
    return list(_rendered(json.dumps(merged(*parts))))


def one(kind: str, *parts: Mapping[str, Any]) -> Fields:
    """The only object of its kind."""
    (found,) = [each for each in render(*parts) if each["kind"] == kind]
    return found


def pod(*parts: Mapping[str, Any]) -> Fields:
    """The pod of the DaemonSet."""
    spec: Fields = one("DaemonSet", *parts)["spec"]["template"]["spec"]
    return spec


def container(*parts: Mapping[str, Any]) -> Fields:
    """The agent's container."""
    (found,) = pod(*parts)["containers"]
    return dict(found)


def environment(*parts: Mapping[str, Any]) -> dict[str, str]:
    """Variables of the agent's container, with the name of the node that the kubelet sets."""
    return {each["name"]: each.get("value", "node-1") for each in container(*parts)["env"]}


def endpoint(*parts: Mapping[str, Any]) -> Fields:
    """The endpoint of the PodMonitor."""
    (found,) = one("PodMonitor", {"monitor": {"enabled": True}}, *parts)["spec"]["podMetricsEndpoints"]
    return dict(found)


def refusal(*parts: Mapping[str, Any]) -> str:
    """The error of helm for values that it refuses."""
    done = helm("template", NAME, str(CHART), values=merged(*parts))
    assert done.returncode != 0 and done.stdout == "", merged(*parts)
    return done.stderr


def merged(*parts: Mapping[str, Any]) -> Fields:
    """Values as helm merges several files: tables key by key, anything else as a whole."""
    result: Fields = {}
    for part in parts:
        for key, value in part.items():
            known = result.get(key)
            both = isinstance(value, Mapping) and isinstance(known, Mapping)
            result[key] = merged(known, value) if both else value  # type: ignore[arg-type]
    return result


@cache
def _rendered(values: str) -> tuple[Fields, ...]:
    objects = yaml.load_all(template(json.loads(values)), yaml.CSafeLoader)
    return tuple(each for each in objects if each is not None)


UNIT = DEPLOY / "rankwatch-agent.service"
DROP_INS = sorted((DEPLOY / "drop-ins").glob("*.conf"))


def directives(path: Path) -> dict[str, list[str]]:
    """Name -> values, in order."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found
