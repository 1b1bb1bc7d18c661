"""Tiers that let the agent see more, for one privilege each."""

from __future__ import annotations

from rankwatch_cli.deployment.names import host_volume, read_only, setting
from rankwatch_cli.deployment.tier import Tier, pod_patch

_POD_RESOURCES = "/var/lib/kubelet/pod-resources"

NVIDIA_RUNTIME = Tier(
    name="nvidia-runtime",
    help="runtimeClassName nvidia, where the runtime that brings GPUs is not the default one",
    patch=pod_patch(runtimeClassName="nvidia"),
)

HOST_NETWORK = Tier(
    name="host-network",
    help="the node's network namespace: counters of its interfaces, TCP and ethtool",
    patch=pod_patch(
        {"env": [setting("disabled_collectors", "")]},
        hostNetwork=True,
        # Else names of services would be asked of the node's resolver, which knows none.
        dnsPolicy="ClusterFirstWithHostNet",
    ),
)

ROOT = Tier(
    name="root",
    help="user 0 without capabilities: flight recorders and old black boxes of trainers that run as root",
    patch=pod_patch(securityContext={"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0}),
)

PODS = Tier(
    name="pods",
    help="the kubelet's pod-resources socket: which pod was given which GPU",
    # The socket is root's, and connecting takes write permission.
    requires=("root",),
    patch=pod_patch(
        {"volumeMounts": [read_only("pod-resources", _POD_RESOURCES)]},
        volumes=[host_volume("pod-resources", _POD_RESOURCES, "Directory")],
    ),
)

PROCESSES = Tier(
    name="processes",
    help="the node's process ids: which process is on which GPU",
    patch=pod_patch(hostPID=True),
)

KERNEL_LOG = Tier(
    name="kernel-log",
    help="/dev/kmsg and CAP_SYSLOG: XID errors and what else the kernel says of GPUs and NICs",
    # Kubernetes gives an added capability to user 0 only.
    requires=("root",),
    patch=pod_patch(
        {
            "volumeMounts": [read_only("kernel-log", "/dev/kmsg")],
            "securityContext": {"capabilities": {"add": ["SYSLOG"]}},
        },
        volumes=[host_volume("kernel-log", "/dev/kmsg", "CharDevice")],
    ),
)

PRIVILEGED = Tier(
    name="privileged",
    help="a privileged container: only where the runtime refuses /dev/kmsg to kernel-log",
    # Which brings the user and the mount: privilege alone reads no kernel log.
    requires=("kernel-log",),
    # The API refuses a privileged container that may not escalate.
    patch=pod_patch({"securityContext": {"privileged": True, "allowPrivilegeEscalation": None}}),
)
