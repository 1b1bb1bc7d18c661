"""Our own rules about dashboards, and those of grafana/dashboard-linter that fit: one per file."""

from rankwatch_dashboards.lint.checks import CHECKS, check_dashboard

__all__ = ["CHECKS", "check_dashboard"]
