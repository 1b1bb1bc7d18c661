"""Since when a fault is there: often for longer than its alert, which waits until the fault has lasted."""

from __future__ import annotations

from collections.abc import Collection

from rankwatch_alerts import Alert, RuleConfig
from rankwatch_alerts.recording.learning import COLLAPSED, DATA_SKEW, DIVERGING
from rankwatch_alerts.recording.life import FAILED
from rankwatch_alerts.recording.nodes import LOST
from rankwatch_alerts.recording.stragglers import STRAGGLER
from rankwatch_alerts.rules import RANK, RUN, duration
from rankwatch_dashboards.panels import CLUSTER

_MOMENTS = {
    **dict.fromkeys(
        (Alert.RUN_STALLED, Alert.COLLECTIVES_DESYNCHRONISED), "run:rankwatch_progress_timestamp_seconds:max"
    ),
    Alert.RUN_FAILED: FAILED,
    Alert.NODE_LOST: LOST,
}
"""Series of a run whose value is the moment."""
_CONDITIONS = {
    Alert.LOSS_DIVERGING: DIVERGING,
    Alert.LOSS_SCALE_COLLAPSED: COLLAPSED,
    Alert.SLOW_STAGE: "stage:rankwatch_slow_stage:slowdown",
    Alert.UNEQUAL_BATCHES: "run:rankwatch_unequal_batches:share",
    Alert.SLOW_DATA_LOADING: "run:rankwatch_slow_data_loading:share",
}
"""Series that exist only while the condition of the alert holds for the run."""
_CONDITIONS_OF_RANKS = {Alert.STRAGGLER: STRAGGLER, Alert.DATA_SKEW: DATA_SKEW}


def began(config: RuleConfig, fires: str, labels: str, alerts: Collection[Alert]) -> str:
    """The moment by these labels, in milliseconds; `fires` is what selects the alerts.

    Alerts without a series that knows it began when they became pending.
    """
    found = [f"ALERTS_FOR_STATE{{{CLUSTER}}} and ignoring (alertstate) {fires}"]
    for by, moments in ((RUN, _of_run(config)), (RANK, _of_rank(config))):
        named = [
            f'label_replace({moment}, "alertname", "{alert}", "", "")'
            for alert, moment in moments.items()
            if alert in alerts
        ]
        if named:
            known = f"{fires} * on (alertname, {by}) group_left () ({' or '.join(named)})"
            # A label of its own keeps `or` from taking them for the same series.
            found.append(f'label_replace({known}, "by", "{by}", "", "")')
    return f"1000 * min by ({labels}) ({' or '.join(found)})"


def _of_run(config: RuleConfig) -> dict[Alert, str]:
    return {
        **{alert: f"min by ({RUN}) ({series}{{{CLUSTER}}})" for alert, series in _MOMENTS.items()},
        **{alert: _first_seen(config, series, RUN) for alert, series in _CONDITIONS.items()},
    }


def _of_rank(config: RuleConfig) -> dict[Alert, str]:
    return {alert: _first_seen(config, series, RANK) for alert, series in _CONDITIONS_OF_RANKS.items()}


def _first_seen(config: RuleConfig, series: str, by: str) -> str:
    """When the series last appeared after a minute without it, in the last hour."""
    interval = duration(config.scrape_interval_seconds)
    series = f"{series}{{{CLUSTER}}}"
    appears = f"timestamp({series}) unless last_over_time({series}[1m] offset {interval})"
    return f"max by ({by}) (max_over_time(({appears})[1h:{interval}]))"
