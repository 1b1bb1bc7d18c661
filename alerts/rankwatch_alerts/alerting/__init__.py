"""Alerting rules, one alert per file."""

from rankwatch_alerts.alerting.groups import alert_groups

__all__ = ["alert_groups"]
