"""Our own rules about rules: one per file, findings as values. Needs promql-parser."""

from rankwatch_alerts.lint.checks import check_alert, check_expression, check_record, check_runbook
from rankwatch_alerts.lint.finding import Finding

__all__ = ["Finding", "check_alert", "check_expression", "check_record", "check_runbook"]
