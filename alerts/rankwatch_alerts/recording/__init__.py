"""Recording rules, one group per file, in the order of evaluation."""

from rankwatch_alerts.recording.groups import recording_groups

__all__ = ["recording_groups"]
