"""The Alertmanager configuration: routes, receivers, texts, and which alert holds back which."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rankwatch_alerts.alertmanager.inhibition import inhibit_rules
from rankwatch_alerts.alertmanager.receivers import receivers
from rankwatch_alerts.alertmanager.routes import route, time_intervals
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.delivery import TICKET, in_alertmanager
from rankwatch_alerts.label_names import in_routes

__all__ = ["TEMPLATES", "TEMPLATES_FILE", "alertmanager_config", "fragments"]

TEMPLATES = Path(__file__).with_name("rankwatch.tmpl")
"""Texts of notifications."""
TEMPLATES_FILE = TEMPLATES.name
"""Name of their copy beside the configuration."""


def fragments(config: RuleConfig, theirs: Mapping[str, Any] = MappingProxyType({})) -> dict[str, list[Any]]:
    """What is added to each list of a configuration, by the key of the list; `routes` is that below `route`.
    Labels have the names that the settings give. Receivers leave out what is not set and `theirs`, the table
    `global` of the configuration, has."""
    ours: Mapping[str, list[Any]] = {
        "templates": [TEMPLATES_FILE],
        "routes": [route(config)],
        "inhibit_rules": inhibit_rules(config.rules_directory),
        "time_intervals": time_intervals(config),
        "receivers": receivers(config, theirs),
    }
    return {key: in_routes(each, config.label_names) for key, each in ours.items()}


def alertmanager_config(config: RuleConfig) -> dict[str, object]:
    """The configuration as Alertmanager reads it; the texts of its receivers lie beside it (TEMPLATES_FILE).

    Receivers deliver to what the settings name for them, or nothing. Alerts of other rules are tickets.
    """
    ours = fragments(config)
    root = {"receiver": in_alertmanager(TICKET), "group_by": ["alertname"], "routes": ours.pop("routes")}
    templates = ours.pop("templates")
    return {"templates": templates, "route": root, **ours}
