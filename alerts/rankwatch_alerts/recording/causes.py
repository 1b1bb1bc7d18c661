"""Where a rank's extra local time went: which kind of phase grew against its peers."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.promql import promql
from rankwatch_alerts.recording.steps import RANK
from rankwatch_alerts.rules import RecordingRule

CAUSE_PHASES: dict[str, tuple[str, ...]] = {
    "compute": ("forward", "backward", "optimizer"),
    "data": ("data_wait",),
    "host": ("checkpoint", "evaluation"),
    "other": ("other",),
}
"""Phases by the cause they point to. `communication` is waiting for others and points to no one."""


def cause_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Mean, excess over the stage's median, and share of the rank's whole excess, by cause."""
    cohort = "cluster, run, stage, cause"
    return (
        _mean_rule(config),
        RecordingRule(
            record="rank_cause:rankwatch_step_local_seconds:excess",
            expression=promql(f"""
                rank_cause:rankwatch_step_local_seconds:mean
                - on ({cohort}) group_left ()
                quantile by ({cohort}) (0.5, rank_cause:rankwatch_step_local_seconds:mean)
            """),
        ),
        RecordingRule(
            record="rank_cause:rankwatch_step_local_seconds:excess_share",
            expression=promql(f"""
                (rank_cause:rankwatch_step_local_seconds:excess > 0)
                / on ({RANK}, stage) group_left ()
                sum by ({RANK}, stage) (rank_cause:rankwatch_step_local_seconds:excess > 0)
            """),
        ),
    )


def _mean_rule(config: RuleConfig) -> RecordingRule:
    window = duration(config.step_window_seconds)
    causes = "\nor\n".join(
        f"label_replace(\n  sum by ({RANK}) (rate(rankwatch_step_phase_seconds_total"
        f'{{phase=~"{"|".join(phases)}"}}[{window}])),\n  "cause", "{cause}", "", ""\n)'
        for cause, phases in CAUSE_PHASES.items()
    )
    indented = "\n".join(f"  {line}" for line in causes.splitlines())
    return RecordingRule(
        record="rank_cause:rankwatch_step_local_seconds:mean",
        expression=f"(\n{indented}\n)\n"
        + promql(f"/ on ({RANK}) group_left (stage)\nrank:rankwatch_steps:rate"),
    )
