"""Recording rules, alerts and the Alertmanager configuration, generated from one config object."""

from rankwatch_alerts.alerting import alert_groups
from rankwatch_alerts.alertmanager import alertmanager_config
from rankwatch_alerts.config import RuleConfig, load_config
from rankwatch_alerts.generation import to_yaml, write_all, write_rules
from rankwatch_alerts.names import ALERT_NAMES, RUN_DEBUG_UID, Alert
from rankwatch_alerts.prometheus import prometheus_config
from rankwatch_alerts.recording import recording_groups

__all__ = [
    "RuleConfig",
    "load_config",
    "Alert",
    "ALERT_NAMES",
    "RUN_DEBUG_UID",
    "recording_groups",
    "alert_groups",
    "write_rules",
    "write_all",
    "alertmanager_config",
    "prometheus_config",
    "to_yaml",
]
