"""Where a rank's extra local time went: which kind of phase grew against its peers."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.promql import promql
from rankwatch_alerts.recording.steps import RANK
from rankwatch_alerts.recording.stragglers import OUTSTANDING
from rankwatch_alerts.rules import RecordingRule

CAUSE_PHASES: dict[str, tuple[str, ...]] = {
    "compute": ("forward", "backward", "optimizer"),
    "data": ("data_wait",),
    "host": ("checkpoint", "evaluation"),
    "other": ("other",),
}
"""Phases by the cause they point to. `communication` is waiting for others and points to no one."""


def cause_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """By cause: mean, excess over the stage's median, and its share in the excess of ranks that stand out."""
    cohort = "cluster, run, stage, cause"
    positive = f"(rank_cause:rankwatch_step_local_seconds:excess and on ({RANK}, stage) {OUTSTANDING}) > 0"
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
            # Of ranks that stand out: nobody asks for the cause of an excess that is noise.
            expression=promql(f"""
                ({positive})
                / on ({RANK}, stage) group_left ()
                sum by ({RANK}, stage) ({positive})
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
