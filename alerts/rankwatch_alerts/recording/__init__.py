"""Recording rules, in the order of evaluation."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.agents import agent_rules, evaluated_rule, failing_rule
from rankwatch_alerts.recording.causes import cause_rules, data_loading_rules, jitter_rules, stage_rules
from rankwatch_alerts.recording.checkpoints import checkpoint_rules
from rankwatch_alerts.recording.collectives import NETWORK_DEGRADED, network_rules
from rankwatch_alerts.recording.costs import arrival_rules, cost_rules, lost_time_rules
from rankwatch_alerts.recording.goodput import goodput_rules, interval_advice_rules
from rankwatch_alerts.recording.hardware import hardware_rules, user_rules
from rankwatch_alerts.recording.held_back import held_back_rules
from rankwatch_alerts.recording.learning import level_rules, loss_rules
from rankwatch_alerts.recording.life import life_rules
from rankwatch_alerts.recording.lost import lost_rules
from rankwatch_alerts.recording.money import money_rules
from rankwatch_alerts.recording.nodes import node_rules, seen_rules
from rankwatch_alerts.recording.objectives import objective_rules
from rankwatch_alerts.recording.replicas import replica_rules
from rankwatch_alerts.recording.runs import run_rules
from rankwatch_alerts.recording.stall_causes import stall_cause_rules
from rankwatch_alerts.recording.stall_places import stall_place_rules
from rankwatch_alerts.recording.steps import estimate, progress_rules, step_rules
from rankwatch_alerts.recording.stragglers import phase_rules, residual_rules, straggler_rules
from rankwatch_alerts.recording.unequal_batches import unequal_batches_rules
from rankwatch_alerts.rules import RuleGroup, recorded

__all__ = ["recording_groups"]


def recording_groups(config: RuleConfig) -> tuple[RuleGroup, ...]:
    """All recording rules.

    Rules that build on each other must see one instant, so they are one group: first what else explains a
    slow rank, then the stragglers, last what each cause costs. What no page waits for, and reads each node,
    is evaluated more seldom.
    """
    interval = config.scrape_interval_seconds
    return (
        RuleGroup(
            name="rankwatch-agents",
            interval_seconds=config.ticket_interval_seconds,
            rules=agent_rules(config),
        ),
        RuleGroup(
            name="rankwatch-progress",
            interval_seconds=interval,
            rules=(
                evaluated_rule(),
                *progress_rules(config),
                *checkpoint_rules(config),
                *seen_rules(config),
                *run_rules(config),
                *life_rules(config),
                failing_rule(config),  # whose evaluations its alert counts
                *stall_place_rules(config),
                *stall_cause_rules(config),
                *lost_rules(),
                *node_rules(config),
            ),
        ),
        RuleGroup(
            name="rankwatch-causes",
            interval_seconds=config.ticket_interval_seconds,
            rules=(
                *phase_rules(config),
                *stage_rules(config),
                *unequal_batches_rules(config),
                *jitter_rules(config),
                *data_loading_rules(config),
                *network_rules(config),
                *level_rules(config),
            ),
        ),
        RuleGroup(
            name="rankwatch-steps",
            interval_seconds=interval,
            rules=(
                *step_rules(config),
                *residual_rules(config),
                *arrival_rules(config),
                *cause_rules(config),
                *cost_rules(config),
                *straggler_rules(config),
                *loss_rules(config),
                *replica_rules(config),
                recorded(NETWORK_DEGRADED, estimate(NETWORK_DEGRADED)),
                *lost_time_rules(),
            ),
        ),
        RuleGroup(
            name="rankwatch-goodput",
            interval_seconds=config.goodput_interval_seconds,
            rules=(*goodput_rules(config), *interval_advice_rules(config), *money_rules(config)),
        ),
        RuleGroup(
            name="rankwatch-objectives",
            interval_seconds=config.slo_interval_seconds,
            rules=objective_rules(config),
        ),
        RuleGroup(
            name="rankwatch-users",
            interval_seconds=config.ticket_interval_seconds,
            rules=user_rules(config),
        ),
        RuleGroup(name="rankwatch-hardware", interval_seconds=interval, rules=hardware_rules(config)),
        RuleGroup(name="rankwatch-held-back", interval_seconds=interval, rules=held_back_rules(config)),
    )
