"""What fires now: how many alerts, which ones, and for how long."""

from __future__ import annotations

from collections.abc import Iterable

from rankwatch_alerts import Alert
from rankwatch_alerts.recording.held_back import HELD_BACK, SAME_ALERT
from rankwatch_dashboards.panels import CLUSTER

_FIRING = 'alertname=~"Rankwatch.+", alertname!="RankwatchWatchdog", alertstate="firing"'
STOPPED = (
    *(Alert.RUN_STALLED, Alert.COLLECTIVES_DESYNCHRONISED, Alert.RUN_FAILED, Alert.RUN_CRASH_LOOPING),
    *(Alert.RANK_LOST, Alert.NODE_LOST),
)
"""A run with one of these makes no progress."""
SILENCES = (
    *(Alert.TELEMETRY_ABSENT, Alert.COLLECTOR_FAILING, Alert.RULES_FAILING),
    *(Alert.BLACK_BOXES_LEFT_OUT, Alert.RECORDS_MISSED),
)
"""What other panels show may be old or incomplete."""


def firing(matchers: str = CLUSTER) -> str:
    """The firing alerts with these labels."""
    return f"ALERTS{{{_FIRING}, {matchers}}}"


def notified(matchers: str = CLUSTER) -> str:
    """Those of them that Alertmanager notifies of: no other alert explains them."""
    return f"({firing(matchers)} unless on ({SAME_ALERT}) {HELD_BACK}{{{CLUSTER}}})"


def named(alerts: Iterable[Alert]) -> str:
    """The matcher of these alerts."""
    names = "|".join(each.removeprefix("Rankwatch") for each in alerts)
    return f'alertname=~"Rankwatch({names})"'


def count_of(series: str, known: str = f"rankwatch_agent_info{{{CLUSTER}}}") -> str:
    """How many; 0 only while telemetry of `known` arrives, so that silence is not read as health."""
    return f"count({series}) or 0 * count({known})"


def once(matchers: str) -> str:
    """The pages and tickets with these labels; what fires as both stands once, as a page."""
    page, ticket = (notified(f'{matchers}, severity="{each}"') for each in ("critical", "warning"))
    return f"({page} or on (cluster, alertname, run, rank, node, gpu) {ticket})"


def age_of(matchers: str, labels: Iterable[str], fires: str = "") -> str:
    """For how many seconds alerts with these labels hold, the oldest of them; `fires` limits them."""
    since = f"ALERTS_FOR_STATE{{{matchers}}} and ignoring (alertstate) {fires or firing(matchers)}"
    return f"time() - min by ({', '.join(('cluster', *labels))}) ({since})"
