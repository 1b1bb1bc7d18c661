"""A tier: one switch that gives the agent more, or guards it better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rankwatch_cli.deployment.names import AGENT, Fields, setting


@dataclass(frozen=True, kw_only=True)
class Tier:
    """What a switch changes."""

    name: str
    help: str
    """What it is for, one line."""
    patch: Fields
    """Strategic merge patch of the DaemonSet."""
    requires: tuple[str, ...] = ()
    """Tiers that come with it."""
    scrape: Mapping[str, object] = field(default_factory=dict)
    """Path below the PodMonitor's endpoint (a/b) -> value: how Prometheus must then ask."""


def pod_patch(container: Fields | None = None, **pod: object) -> Fields:
    """A patch of the pod and, where given, of the agent's container."""
    containers: Sequence[Fields] = [] if container is None else [{"name": AGENT, **container}]
    lists = {"containers": containers} if containers else {}
    return {"spec": {"template": {"spec": {**pod, **lists}}}}


def settings_patch(settings: Mapping[str, str]) -> Fields:
    """A patch that sets fields of AgentConfig, by name."""
    return pod_patch({"env": [setting(name, text) for name, text in settings.items()]}) if settings else {}
