"""The service level indicators: the question that each answers, the series that answer it, and its alerts.

A test holds that each alert depends on the series, and that each series is on a panel.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rankwatch_alerts.catalogue.learning import LEARNING
from rankwatch_alerts.catalogue.life import LIFE
from rankwatch_alerts.catalogue.machines import GPUS, HOSTS, NETWORK
from rankwatch_alerts.catalogue.pace import COLLECTIVES, STEPS, STRAGGLERS
from rankwatch_alerts.catalogue.safety import CHECKPOINTS, REPLICAS
from rankwatch_alerts.catalogue.sli import Sli
from rankwatch_alerts.catalogue.spending import COSTS, GOODPUT
from rankwatch_alerts.catalogue.telemetry import TELEMETRY

__all__ = ["SLIS", "Sli"]

SLIS: Mapping[str, tuple[Sli, ...]] = MappingProxyType(
    {
        "Steps": STEPS,
        "Learning": LEARNING,
        "Life of runs": LIFE,
        "Collectives": COLLECTIVES,
        "Stragglers": STRAGGLERS,
        "Replicas": REPLICAS,
        "Checkpoints": CHECKPOINTS,
        "Goodput": GOODPUT,
        "Cost": COSTS,
        "GPUs": GPUS,
        "Network": NETWORK,
        "Hosts": HOSTS,
        "Telemetry": TELEMETRY,
    }
)
"""Every indicator, by what it is about."""
