"""The Alertmanager configuration: routes, receivers, texts, and which alert holds back which."""

from __future__ import annotations

from pathlib import Path

from rankwatch_alerts.alertmanager.inhibition import inhibit_rules
from rankwatch_alerts.alertmanager.receivers import receivers
from rankwatch_alerts.alertmanager.routes import route, time_intervals
from rankwatch_alerts.config import RuleConfig

__all__ = ["TEMPLATES", "TEMPLATES_FILE", "alertmanager_config"]

TEMPLATES = Path(__file__).with_name("rankwatch.tmpl")
"""Texts of notifications."""
TEMPLATES_FILE = TEMPLATES.name
"""Name of their copy beside the configuration."""


def alertmanager_config(config: RuleConfig, webhook_url: str | None = None) -> dict[str, object]:
    """The configuration as Alertmanager reads it; the texts of its receivers lie beside it (TEMPLATES_FILE).

    Receivers deliver to what the settings name for them, or nothing. With `webhook_url` pages and tickets are
    posted there instead.
    """
    return {
        "templates": [TEMPLATES_FILE],
        "route": route(config),
        "inhibit_rules": inhibit_rules(),
        "time_intervals": time_intervals(config),
        "receivers": receivers(config, webhook_url),
    }
