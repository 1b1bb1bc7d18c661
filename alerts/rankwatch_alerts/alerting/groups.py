"""The list of alerting groups."""

from __future__ import annotations

from rankwatch_alerts.alerting.checkpoint_failed import checkpoint_failed
from rankwatch_alerts.alerting.checkpoint_stale import checkpoint_stale
from rankwatch_alerts.alerting.collectives_desynchronised import collectives_desynchronised
from rankwatch_alerts.alerting.collector_failing import collector_failing
from rankwatch_alerts.alerting.data_imbalance import data_imbalance
from rankwatch_alerts.alerting.data_starvation import data_starvation
from rankwatch_alerts.alerting.jitter import jitter
from rankwatch_alerts.alerting.loss_diverging import loss_diverging
from rankwatch_alerts.alerting.loss_non_finite import loss_non_finite
from rankwatch_alerts.alerting.network_degraded import network_degraded
from rankwatch_alerts.alerting.rank_lost import rank_lost
from rankwatch_alerts.alerting.run_stalled import run_stalled
from rankwatch_alerts.alerting.slow_stage import slow_stage
from rankwatch_alerts.alerting.straggler import straggler
from rankwatch_alerts.alerting.telemetry_absent import telemetry_absent
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import AlertRule, RuleGroup


def alert_groups(config: RuleConfig) -> tuple[RuleGroup, ...]:
    """All alerting rules, in the order of triage: does it run, is it fast, does it learn, is it safe."""
    rules_of: dict[str, tuple[AlertRule, ...]] = {
        "rankwatch-availability": (
            *rank_lost(config),
            *run_stalled(config),
            *collectives_desynchronised(config),
        ),
        "rankwatch-performance": (
            *straggler(config),
            *slow_stage(config),
            *data_imbalance(config),
            *data_starvation(config),
            *network_degraded(config),
            *jitter(config),
        ),
        "rankwatch-learning": (*loss_non_finite(config), *loss_diverging(config)),
        "rankwatch-checkpoints": (*checkpoint_failed(config), *checkpoint_stale(config)),
        "rankwatch-telemetry": (*telemetry_absent(config), *collector_failing(config)),
    }
    return tuple(
        RuleGroup(
            name=name,
            interval_seconds=config.scrape_interval_seconds,
            limit=config.alert_limit,
            rules=rules,
        )
        for name, rules in rules_of.items()
    )
