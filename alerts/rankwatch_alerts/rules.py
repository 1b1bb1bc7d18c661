"""Rules and groups as values, and the dictionaries Prometheus reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rankwatch_alerts.duration import duration


class Severity(StrEnum):
    """Who is told: critical pages, warning opens a ticket, info is context."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class RecordingRule:
    """One recorded series."""

    record: str
    expression: str

    def as_dict(self) -> dict[str, object]:
        """The rule as Prometheus reads it."""
        return {"record": self.record, "expr": self.expression}


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    """One alerting rule; several may share an alert's name."""

    alert: str
    expression: str
    for_seconds: float
    severity: Severity
    labels: Mapping[str, str] = field(default_factory=dict)
    """Static labels beside the severity."""
    annotations: Mapping[str, str]
    """Summary, description and links; templates may use labels the expression has."""

    def as_dict(self) -> dict[str, object]:
        """The rule as Prometheus reads it."""
        return {
            "alert": self.alert,
            "expr": self.expression,
            "for": duration(self.for_seconds),
            "labels": {"severity": str(self.severity), **self.labels},
            "annotations": dict(self.annotations),
        }


@dataclass(frozen=True, kw_only=True)
class RuleGroup:
    """Rules evaluated one after another at the same instant."""

    name: str
    interval_seconds: float
    rules: tuple[RecordingRule, ...] | tuple[AlertRule, ...]
    limit: int = 0
    """Most alerts or series one rule may yield; 0 for no limit."""

    def as_dict(self) -> dict[str, object]:
        """The group as Prometheus reads it."""
        limit: dict[str, object] = {"limit": self.limit} if self.limit else {}
        return {
            "name": self.name,
            "interval": duration(self.interval_seconds),
            **limit,
            "rules": [each.as_dict() for each in self.rules],
        }
