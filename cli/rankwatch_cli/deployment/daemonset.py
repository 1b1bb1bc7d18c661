"""The DaemonSet, without any tier and with those that were chosen."""

from __future__ import annotations

from rankwatch_cli.deployment.container import POD_SECURITY, agent_container, directory_container
from rankwatch_cli.deployment.merge import merged
from rankwatch_cli.deployment.names import (
    AGENT,
    BLACK_BOXES,
    LABELS,
    SELECTOR,
    Fields,
    host_volume,
    metadata,
)
from rankwatch_cli.deployment.tier import settings_patch
from rankwatch_cli.deployment.tiers import chosen_tiers
from rankwatch_cli.deployment.values import Values


def daemonset(values: Values) -> Fields:
    """The DaemonSet with all chosen tiers; raises UserError for a tier that does not exist."""
    result = _base(values)
    for tier in chosen_tiers(values.tiers):
        result = merged(result, tier.patch)
    # Last: what the user sets wins over a tier.
    return merged(result, settings_patch(values.settings))


def _base(values: Values) -> Fields:
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata(AGENT, values.namespace),
        "spec": {
            "selector": {"matchLabels": dict(SELECTOR)},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": {"labels": dict(LABELS)}, "spec": _pod(values)},
        },
    }


def _pod(values: Values) -> Fields:
    return {
        "serviceAccountName": AGENT,
        "automountServiceAccountToken": False,
        # Variables of services called rankwatch-agent would look like settings.
        "enableServiceLinks": False,
        "priorityClassName": "system-node-critical",
        "terminationGracePeriodSeconds": 10,
        "nodeSelector": {"kubernetes.io/os": "linux", **values.node_selector},
        "tolerations": [{"key": key, "operator": "Exists"} for key in values.tolerations],
        "securityContext": POD_SECURITY,
        **_pull_secrets(values),
        "initContainers": [directory_container(values)],
        "containers": [agent_container(values)],
        "volumes": _volumes(values),
    }


def _pull_secrets(values: Values) -> Fields:
    names = [{"name": name} for name in values.image_pull_secrets]
    return {"imagePullSecrets": names} if names else {}


def _volumes(values: Values) -> list[Fields]:
    checkpoints = enumerate(values.checkpoint_paths)
    return [
        host_volume("black-boxes", BLACK_BOXES, "DirectoryOrCreate"),
        # Evidence outlives the container, not the pod. 20 bundles of 256 MiB are the most there is.
        {"name": "state", "emptyDir": {"sizeLimit": "6Gi"}},
        host_volume("proc", "/proc", "Directory"),
        host_volume("sys", "/sys", "Directory"),
        *(host_volume(f"checkpoints-{number}", path, "Directory") for number, path in checkpoints),
    ]
