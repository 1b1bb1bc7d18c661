"""Alerting rules."""

from __future__ import annotations

from collections.abc import Sequence

from rankwatch.settings import expect
from rankwatch_alerts.alerting.black_boxes import black_boxes_left_out, records_missed
from rankwatch_alerts.alerting.checkpoints import checkpoint_alerts
from rankwatch_alerts.alerting.cost import forecast_over_budget, gpus_idle, price_unknown, utilisation_low
from rankwatch_alerts.alerting.fabric import fabric_alerts
from rankwatch_alerts.alerting.gpus import gpu_alerts
from rankwatch_alerts.alerting.hosts import host_alerts
from rankwatch_alerts.alerting.learning import (
    data_skew,
    loss_diverging,
    loss_non_finite,
    loss_plateau,
    loss_scale_collapsed,
    norm_exploding,
)
from rankwatch_alerts.alerting.life import (
    preemption_storm,
    run_behind_plan,
    run_crash_looping,
    run_failed,
    startup_slow,
)
from rankwatch_alerts.alerting.nodes import node_lost, node_unseen
from rankwatch_alerts.alerting.objectives import objective_alerts
from rankwatch_alerts.alerting.replicas import norm_differs, rank_differs, replicas_differ
from rankwatch_alerts.alerting.slow import (
    jitter,
    network_degraded,
    slow_data_loading,
    slow_stage,
    step_time_regressed,
    straggler,
    unequal_batches,
)
from rankwatch_alerts.alerting.stalls import collectives_desynchronised, rank_lost, run_stalled
from rankwatch_alerts.alerting.telemetry import collector_failing, rules_failing, telemetry_absent, watchdog
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import AlertRule, RuleGroup, Severity

__all__ = ["alert_groups"]


def alert_groups(config: RuleConfig) -> tuple[RuleGroup, ...]:
    """All alerting rules, in the order of triage: does it run, is it fast, does it learn, is it safe.

    Raises FieldError for a severity of an alert whose rules have several.
    """
    gpus, fabric = gpu_alerts(config), fabric_alerts(config)
    paging = {each.alert for each in (*gpus, *fabric) if each.severity is Severity.CRITICAL}
    rules_of: dict[str, tuple[AlertRule, ...]] = {
        "rankwatch-availability": (
            *node_lost(config),
            *rank_lost(config),
            *run_stalled(config),
            *collectives_desynchronised(config),
            run_failed(config),
            run_crash_looping(config),
            preemption_storm(config),
            startup_slow(config),
            run_behind_plan(config),
        ),
        "rankwatch-performance": (
            *straggler(config),
            slow_stage(config),
            unequal_batches(config),
            slow_data_loading(config),
            network_degraded(config),
            jitter(config),
            *step_time_regressed(config),
        ),
        "rankwatch-learning": (
            loss_non_finite(config),
            loss_diverging(config),
            loss_plateau(config),
            norm_exploding(config),
            loss_scale_collapsed(config),
            rank_differs(config),
            norm_differs(config),
            replicas_differ(config),
            data_skew(config),
        ),
        "rankwatch-checkpoints": checkpoint_alerts(config),
        "rankwatch-budgets": objective_alerts(config),
        "rankwatch-cost": (
            forecast_over_budget(config),
            gpus_idle(config),
            *utilisation_low(config),
            price_unknown(config),
        ),
        "rankwatch-gpus": tuple(each for each in gpus if each.alert in paging),
        "rankwatch-fabric": tuple(each for each in fabric if each.alert in paging),
        "rankwatch-tickets": tuple(each for each in (*gpus, *fabric) if each.alert not in paging),
        "rankwatch-hosts": host_alerts(config),
        "rankwatch-telemetry": (
            *telemetry_absent(config),
            node_unseen(config),
            collector_failing(config),
            rules_failing(config),
            watchdog(config),
            black_boxes_left_out(config),
            records_missed(config),
        ),
    }
    _refuse_equal_rules(config, [rule for rules in rules_of.values() for rule in rules])
    seldom = ("rankwatch-tickets", "rankwatch-hosts", "rankwatch-telemetry")
    intervals = dict.fromkeys(seldom, config.ticket_interval_seconds)
    return tuple(
        RuleGroup(
            name=name,
            interval_seconds=intervals.get(name, config.scrape_interval_seconds),
            rules=rules,
        )
        for name, rules in rules_of.items()
    )


def _refuse_equal_rules(config: RuleConfig, rules: Sequence[AlertRule]) -> None:
    """Two rules of one name and the same labels would be one alert with two descriptions."""
    seen = [(rule.alert, rule.severity, tuple(sorted(rule.labels.items()))) for rule in rules]
    for alert in config.severities:
        found = [each for each in seen if each[0] == alert]
        several = "no alert that has rules of several severities"
        expect(config, "severities", len(set(found)) == len(found), f"{several}, as {alert} has")
