"""A complete Prometheus configuration, for the demo and for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration


def prometheus_config(
    config: RuleConfig,
    *,
    rule_files: Sequence[Path],
    agent_targets: Sequence[str],
    alertmanager_targets: Sequence[str] = (),
) -> dict[str, object]:
    """The configuration as Prometheus reads it; targets are `host:port`."""
    interval = duration(config.scrape_interval_seconds)
    return {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": interval,
            "evaluation_interval": interval,
        },
        "rule_files": [str(each) for each in rule_files],
        "scrape_configs": [
            {"job_name": config.agent_job, "static_configs": [{"targets": list(agent_targets)}]}
        ],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": list(alertmanager_targets)}]}],
        },
    }
