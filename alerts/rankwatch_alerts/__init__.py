"""Recording rules, alerts and the Alertmanager configuration, generated from one config object."""

from rankwatch_alerts.alertmanager import alertmanager_config
from rankwatch_alerts.config import RuleConfig, load_config
from rankwatch_alerts.generation import prometheus_config, to_yaml, write_rules, write_sharded
from rankwatch_alerts.rule_files import alert_groups, alert_rules, recording_groups, recording_rules
from rankwatch_alerts.rules import (
    AGENTS_UID,
    ALERT_NAMES,
    CHECKPOINTS_GOODPUT_UID,
    FLEET_UID,
    HARDWARE_ALERTS,
    HARDWARE_UID,
    LEARNING_UID,
    ON_CALL_UID,
    RUN_DEBUG_UID,
    Alert,
)

__all__ = [
    "RuleConfig",
    "load_config",
    "Alert",
    "ALERT_NAMES",
    "RUN_DEBUG_UID",
    "CHECKPOINTS_GOODPUT_UID",
    "HARDWARE_UID",
    "ON_CALL_UID",
    "FLEET_UID",
    "AGENTS_UID",
    "LEARNING_UID",
    "HARDWARE_ALERTS",
    "recording_groups",
    "recording_rules",
    "alert_groups",
    "alert_rules",
    "write_rules",
    "write_sharded",
    "alertmanager_config",
    "prometheus_config",
    "to_yaml",
]
