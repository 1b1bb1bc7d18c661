"""All tiers, in the order in which they are laid over each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.deployment.access_tiers import MUTUAL_TLS, TLS, TOKEN
from rankwatch_cli.deployment.privilege_tiers import (
    HOST_NETWORK,
    KERNEL_LOG,
    NVIDIA_RUNTIME,
    PODS,
    PRIVILEGED,
    PROCESSES,
    ROOT,
)
from rankwatch_cli.deployment.tier import Tier

TIERS: Mapping[str, Tier] = MappingProxyType(
    {
        tier.name: tier
        for tier in (
            NVIDIA_RUNTIME,
            HOST_NETWORK,
            ROOT,
            PODS,
            PROCESSES,
            KERNEL_LOG,
            PRIVILEGED,
            TLS,
            MUTUAL_TLS,
            TOKEN,
        )
    }
)
"""Every tier by its name; what a tier requires stands before it."""


def chosen_tiers(names: Iterable[str]) -> list[Tier]:
    """The named tiers and those they require, in order; raises UserError for an unknown name."""
    wanted = set(names)
    for name in sorted(wanted - set(TIERS)):
        raise UserError(f"could not use tier {name!r}: expected one of {', '.join(TIERS)}")
    for tier in reversed(tuple(TIERS.values())):
        if tier.name in wanted:
            wanted |= set(tier.requires)
    return [tier for tier in TIERS.values() if tier.name in wanted]
