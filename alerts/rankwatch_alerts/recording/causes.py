"""Where a rank's extra local time went: which kind of phase grew against its peers."""

from __future__ import annotations

from rankwatch.conventions import SlowPhase
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.promql import promql
from rankwatch_alerts.recording.steps import RANK
from rankwatch_alerts.recording.stragglers import OUTSTANDING
from rankwatch_alerts.rules import RecordingRule

STEP_PHASES: dict[SlowPhase, tuple[str, ...]] = {
    SlowPhase.COMPUTE: ("forward", "backward", "optimizer"),
    SlowPhase.DATA_LOADING: ("data_wait",),
    SlowPhase.CHECKPOINT: ("checkpoint",),
    SlowPhase.OTHER: ("evaluation", "other"),
}
"""Phases of a step by the phase of a slow rank. `communication` is waiting for others and names nobody."""


def phase_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """By phase: mean, excess over the stage's median, and its share in the excess of ranks that stand out."""
    cohort = "cluster, run, stage, phase"
    positive = f"(rank_phase:rankwatch_step_local_seconds:excess and on ({RANK}, stage) {OUTSTANDING}) > 0"
    return (
        _mean_rule(config),
        RecordingRule(
            record="rank_phase:rankwatch_step_local_seconds:excess",
            expression=promql(f"""
                rank_phase:rankwatch_step_local_seconds:mean
                - on ({cohort}) group_left ()
                quantile by ({cohort}) (0.5, rank_phase:rankwatch_step_local_seconds:mean)
            """),
        ),
        RecordingRule(
            record="rank_phase:rankwatch_step_local_seconds:excess_share",
            # Of ranks that stand out: nobody asks for the phase of an excess that is noise.
            expression=promql(f"""
                ({positive})
                / on ({RANK}, stage) group_left ()
                sum by ({RANK}, stage) ({positive})
            """),
        ),
    )


def _mean_rule(config: RuleConfig) -> RecordingRule:
    window = duration(config.step_window_seconds)
    phases = "\nor\n".join(
        f"label_replace(\n  sum by ({RANK}) (rate(rankwatch_step_phase_seconds_total"
        f'{{phase=~"{"|".join(parts)}"}}[{window}])),\n  "phase", "{phase}", "", ""\n)'
        for phase, parts in STEP_PHASES.items()
    )
    indented = "\n".join(f"  {line}" for line in phases.splitlines())
    return RecordingRule(
        record="rank_phase:rankwatch_step_local_seconds:mean",
        expression=f"(\n{indented}\n)\n"
        + promql(f"/ on ({RANK}) group_left (stage)\nrank:rankwatch_steps:rate"),
    )
