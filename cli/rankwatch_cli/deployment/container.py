"""The agent's container, as it is without any tier."""

from __future__ import annotations

from rankwatch_cli.deployment.names import (
    AGENT,
    BLACK_BOXES,
    HOST_ROOT,
    PORT_NAME,
    STATE,
    USER_ID,
    Fields,
    read_only,
    setting,
)
from rankwatch_cli.deployment.values import Values

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
POD_COLLECTORS = "ethtool"
"""Collectors that can ask only the network namespace they are in: the pod's own."""

_NO_PRIVILEGE: Fields = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
# A probe that takes longer than the kubelet's default of 1 s is common on a busy node and no reason to
# kill anything. None of the three asks the driver.
_PATIENCE = {"timeoutSeconds": 5}

POD_SECURITY: Fields = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""Security of the pod. fsGroup lets the agent read the secrets mounted into it; host paths ignore it."""


def agent_container(values: Values) -> Fields:
    """Reads what needs no privilege: black boxes, /proc and /sys of the node, and the GPUs by NVML."""
    return {
        "name": AGENT,
        "image": values.image,
        "imagePullPolicy": "IfNotPresent",
        "env": _environment(values),
        "ports": [{"name": PORT_NAME, "containerPort": values.port(), "protocol": "TCP"}],
        "startupProbe": {**_get("/healthz"), **_PATIENCE, "periodSeconds": 2, "failureThreshold": 30},
        "livenessProbe": {**_get("/healthz"), **_PATIENCE, "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**_get("/readyz"), **_PATIENCE, "periodSeconds": 10, "failureThreshold": 3},
        # No limit on the CPU: throttling would stop the agent just when a node is busy, and a scrape or a
        # probe with it. What it may take at most is held by tests.
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": _NO_PRIVILEGE,
        "volumeMounts": _mounts(values),
    }


def directory_container(values: Values) -> Fields:
    """Opens the directory of the black boxes to every user, as /tmp is.

    The kubelet makes a host path 0755 for root, whatever fsGroup says, and trainers of other users then
    could not write. Where a trainer made it before there was an agent, it belongs to that user: CAP_FOWNER
    lets root change its mode too, and nothing else is given.
    """
    security = {**_NO_PRIVILEGE, "capabilities": {"drop": ["ALL"], "add": ["FOWNER"]}}
    return {
        "name": "open-directory",
        "image": values.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["chmod", "1777", BLACK_BOXES],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "32Mi"}},
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False, **security},
        "volumeMounts": [{"name": "black-boxes", "mountPath": BLACK_BOXES}],
    }


def _environment(values: Values) -> list[Fields]:
    env: list[Fields] = [
        {"name": "RANKWATCH_AGENT_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        setting("cluster", values.cluster),
        setting("listen", values.listen),
        setting("directory", BLACK_BOXES),
        setting("procfs", "/host/proc"),
        setting("sysfs", "/host/sys"),
        setting("log_format", "json"),
        setting("disabled_collectors", POD_COLLECTORS),
        # All GPUs to look at, none reserved; `utility` brings NVML and no CUDA.
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
    ]
    if values.checkpoint_paths:
        env.append(setting("checkpoint_paths", ",".join(values.checkpoint_paths)))
        env.append(setting("rootfs", HOST_ROOT))
    return env


def _mounts(values: Values) -> list[Fields]:
    mounts: list[Fields] = [
        {"name": "black-boxes", "mountPath": BLACK_BOXES},
        {"name": "state", "mountPath": STATE},
        read_only("proc", "/host/proc"),
        read_only("sys", "/host/sys"),
    ]
    for number, path in enumerate(values.checkpoint_paths):
        # A file system that the node mounts later is seen as well.
        mount = read_only(f"checkpoints-{number}", f"{HOST_ROOT}{path}")
        mounts.append({**mount, "mountPropagation": "HostToContainer"})
    return mounts


def _get(path: str) -> Fields:
    return {"httpGet": {"path": path, "port": PORT_NAME}}
