"""All objects, in the order in which a cluster takes them."""

from __future__ import annotations

import os
from typing import NamedTuple

from rankwatch_agent.runtime.config import load_config
from rankwatch_cli.deployment import surroundings
from rankwatch_cli.deployment.daemonset import daemonset
from rankwatch_cli.deployment.monitoring import Monitoring, dashboards, pod_monitor, prometheus_rules
from rankwatch_cli.deployment.names import Fields
from rankwatch_cli.deployment.values import Values


class Manifest(NamedTuple):
    """An object, and what a reader should know of it."""

    object: Fields
    comment: str = ""


def agent_manifests(values: Values) -> list[Manifest]:
    """What runs the agent. Raises UserError for an unknown tier or a setting the agent would refuse."""
    agents = daemonset(values)
    check_settings(agents)
    return [
        Manifest(surroundings.namespace(values), surroundings.NAMESPACE_COMMENT),
        Manifest(surroundings.service_account(values), surroundings.ACCOUNT_COMMENT),
        Manifest(surroundings.resource_quota(values), surroundings.QUOTA_COMMENT),
        Manifest(surroundings.network_policy(values), surroundings.POLICY_COMMENT),
        Manifest(agents),
    ]


def monitoring_manifests(values: Values, monitoring: Monitoring) -> list[Manifest]:
    """What makes a Prometheus operator and Grafana's sidecar take the agents up."""
    objects = [
        pod_monitor(values, monitoring),
        *prometheus_rules(values, monitoring),
        *dashboards(values, monitoring),
    ]
    return [Manifest(each) for each in objects]


def check_settings(agents: Fields) -> None:
    """Raises UserError where the agent of this DaemonSet would not start for its settings."""
    (container,) = agents["spec"]["template"]["spec"]["containers"]
    environ = {each["name"]: each.get("value", os.devnull) for each in container["env"]}
    load_config(flags={}, environ=environ)
