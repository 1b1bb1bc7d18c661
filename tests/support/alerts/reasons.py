"""The reasons of each alert, as the rules have them."""

from __future__ import annotations

from rankwatch_alerts.adjustments import reasons_by_alert
from rankwatch_alerts.rule_files import written_alerts

ALERTS = reasons_by_alert(written_alerts())
"""Alert -> its reasons."""
