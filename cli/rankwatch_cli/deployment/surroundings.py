"""What the DaemonSet stands in: its namespace, account, quota and network policy."""

from __future__ import annotations

from rankwatch_cli.deployment.names import AGENT, SELECTOR, Fields, metadata
from rankwatch_cli.deployment.values import Values

NAMESPACE_COMMENT = """\
The levels baseline and restricted forbid every hostPath, read-only ones too, and without them the agent
sees nothing of its node. What it may do is held by the DaemonSet itself. Give it a namespace of its own.
"""
ACCOUNT_COMMENT = "No role is bound to it and no token is mounted: the agent never asks the API server."
QUOTA_COMMENT = """\
Some clusters (GKE among them) allow system-node-critical outside kube-system only under a quota.
"""
POLICY_COMMENT = """\
Only Prometheus may connect. It has no effect on pods in the node's network (tier host-network), nor where
the network plugin knows no policies: use the tiers tls, mutual-tls and token there.
"""


def namespace(values: Values) -> Fields:
    """The namespace, with the pod-security level that host paths need."""
    level = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "audit", "warn")}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": metadata(values.namespace, labels=level),
    }


def service_account(values: Values) -> Fields:
    """An account without any right."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(AGENT, values.namespace),
        "automountServiceAccountToken": False,
    }


def resource_quota(values: Values) -> Fields:
    """Room for one pod per node, however large the cluster."""
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata(AGENT, values.namespace),
        "spec": {"hard": {"pods": "100000"}, "scopeSelector": {"matchExpressions": [scope]}},
    }


def network_policy(values: Values) -> Fields:
    """Ingress from the namespace of Prometheus to the metrics port, and nothing else."""
    monitoring = {"matchLabels": {"kubernetes.io/metadata.name": values.monitoring_namespace}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(AGENT, values.namespace),
        "spec": {
            "podSelector": {"matchLabels": dict(SELECTOR)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"namespaceSelector": monitoring}],
                    "ports": [{"protocol": "TCP", "port": values.port()}],
                }
            ],
        },
    }
