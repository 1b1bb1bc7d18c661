"""Every object is one that Kubernetes knows, in the oldest and in the newest version at hand."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from support.deploy.chart import MONITORING, MUTUAL_TLS, TLS, TOKEN, merged, one, render, tool

pytestmark = pytest.mark.process

VERSIONS = ("1.27", kubernetes_validate.latest_version())
OPERATOR_KINDS = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
PRIVILEGES = ("root", "pods", "processes", "kernelLog", "privileged", "hostNetwork")
PEER = {"podSelector": {"matchLabels": {"app": "collector"}}}

EVERYTHING: dict[str, Any] = {
    "namespace": {"create": True, "name": "obs"},
    "commonLabels": {"team": "ml"},
    "cluster": "lab",
    "image": {"repository": "registry.example.com/a", "tag": "1", "pullSecrets": [{"name": "regcred"}]},
    "listen": {"address": "[::]", "port": 9999},
    "settings": {"max_runs": 5, "otlp_endpoint": "http://collector:4318/v1/metrics"},
    "privileges": dict.fromkeys(PRIVILEGES, True),
    "runtimeClassName": "nvidia",
    "state": {"hostPath": "/var/lib/rankwatch"},
    "checkpointPaths": ["/data", "/mnt/scratch"],
    **MUTUAL_TLS,
    **TOKEN,
    "service": {"enabled": True, "annotations": {"a": "b"}, "labels": {"c": "d"}},
    **MONITORING,
    "networkPolicy": {"from": [PEER], "egress": {"rules": [{"to": [PEER], "ports": [{"port": 4318}]}]}},
    "nodeSelector": {"pool": "gpu"},
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "updateStrategy": {"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"a": "b"},
    "daemonSetAnnotations": {"a": "b"},
    "podSecurityContext": {"seLinuxOptions": {"type": "spc_t"}},
    "extraEnv": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
    "extraVolumes": [{"name": "jobs", "hostPath": {"path": "/run/jobs"}}],
    "extraVolumeMounts": [{"name": "jobs", "mountPath": "/run/jobs"}],
}
ALONE: dict[str, dict[str, Any]] = {
    "default": {},
    **{name: {"privileges": {name: True}} for name in PRIVILEGES},
    "tls": TLS,
    "mutual tls": MUTUAL_TLS,
    "token": TOKEN,
    "monitoring": MONITORING,
    "service monitor": {"monitor": {"enabled": True, "kind": "ServiceMonitor"}},
    "nothing optional": {
        **{name: {"enabled": False} for name in ("networkPolicy", "resourceQuota")},
        "serviceAccount": {"create": False},
        "priorityClassName": "",
        "tolerations": [],
        "resources": {"limits": None, "requests": None},
    },
}


def validate(document: dict[str, Any]) -> None:
    """Unknown fields are errors."""
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("choice", [*ALONE, "everything"])
def test_objects_fit_their_schemas(choice: str) -> None:
    """Each switch alone, and all together; the operator's kinds have no schema."""
    for each in render(ALONE.get(choice, EVERYTHING)):
        if each["kind"] not in OPERATOR_KINDS:
            validate(each)


def test_the_schema_finds_a_mistake() -> None:
    """A misspelt field is refused."""
    wrong = copy.deepcopy(one("DaemonSet"))
    wrong["spec"]["updateStrategie"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(wrong)


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["default", "everything"])
def test_kubectl_reads_the_objects(values: dict[str, Any], tmp_path: Path) -> None:
    """Into its own types, which needs no cluster: a number where text belongs would end here."""
    objects = [each for each in render(merged(values)) if each["kind"] not in OPERATOR_KINDS]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(objects))
    command = [tool("kubectl"), "label", "--local", "--filename", str(tmp_path / "all.yaml"), "read=yes"]
    done = subprocess.run(
        [*command, "--output", "name"],
        env={"KUBECONFIG": "/dev/null", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(objects)
