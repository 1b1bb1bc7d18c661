"""The list of recording groups."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.causes import phase_rules
from rankwatch_alerts.recording.collectives import collective_rules
from rankwatch_alerts.recording.jitter import jitter_rules
from rankwatch_alerts.recording.network import network_rules
from rankwatch_alerts.recording.progress import progress_rules
from rankwatch_alerts.recording.stages import stage_rules
from rankwatch_alerts.recording.stall_culprits import stall_culprit_rules
from rankwatch_alerts.recording.starvation import starvation_rules
from rankwatch_alerts.recording.steps import step_rules
from rankwatch_alerts.recording.stragglers import straggler_rules
from rankwatch_alerts.recording.suspects import suspect_rules
from rankwatch_alerts.recording.variation import variation_rules
from rankwatch_alerts.rules import RuleGroup


def recording_groups(config: RuleConfig) -> tuple[RuleGroup, ...]:
    """All recording rules.

    Steps, stragglers and causes build on each other and must see one instant: they are one group.
    What explains a slow rank comes before the suspects. No other rule rests on what collectives wait: in a
    group of their own they are evaluated beside the others.
    """
    return (
        RuleGroup(
            name="rankwatch-progress",
            interval_seconds=config.scrape_interval_seconds,
            rules=(*progress_rules(config), *stall_culprit_rules(config)),
        ),
        RuleGroup(
            name="rankwatch-steps",
            interval_seconds=config.scrape_interval_seconds,
            rules=(
                *step_rules(config),
                *straggler_rules(config),
                *phase_rules(config),
                *stage_rules(config),
                *variation_rules(config),
                *jitter_rules(config),
                *starvation_rules(config),
                *suspect_rules(config),
                *network_rules(config),
            ),
        ),
        RuleGroup(
            name="rankwatch-collectives",
            interval_seconds=config.scrape_interval_seconds,
            rules=collective_rules(config),
        ),
    )
