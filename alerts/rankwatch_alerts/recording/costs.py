"""What each cause costs: the sum of the time that others wait for it, over all steps of the window.

A slow rank costs what it takes longer than the ranks it meets in collectives, and not all of its excess:

- In a pipeline, part of the excess is hidden in the time that the rank waits for its own stages anyway. So
  ranks are compared by when they reach the collectives: after their own work, sends and receives.
- Without the rank, the run would go at the pace of the last of the others, and not of the median one. Chips
  differ, and steps vary, so among many ranks the last one is a few percent later.
- A rank that is slow in single steps holds up the others in these, and in no other step. Both parts add up.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankwatch.conventions import Cause
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.steps import RANKS, of_all, recent
from rankwatch_alerts.recording.unequal_batches import EXPECTED_MAXIMUM
from rankwatch_alerts.rules import RANK, RUN, STAGE, RecordingRule, recorded

COST = "rank:rankwatch_straggler:lost_seconds"
LOST_SHARE = "run_cause:rankwatch_lost_time:share"
HIGH_EXCESS = "rank:rankwatch_step_local_seconds:high_excess"
"""Excess of the few ranks whose residual is that of a straggler; expensive joins use only these."""
LATE_EXCESS = "rank:rankwatch_late_step_seconds:high_excess"
"""Their late seconds per step."""
_ARRIVAL = "stage:rankwatch_step_arrival_seconds:median"
_MARGIN = "stage:rankwatch_step_arrival_seconds:margin"
LATER = "rank:rankwatch_straggler:later_seconds"
_IN_LATE_STEPS = "rank:rankwatch_straggler:late_step_seconds"
_LATE_STEPS = "rank:rankwatch_straggler:late_steps_share"


def arrival_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """When the ranks of a stage reach the collectives, and how much later the last one does than the median
    one in a run without a fault."""
    return (
        recorded(_ARRIVAL, f"quantile by ({STAGE}) (0.5, {of_all(config, 'step_arrival_seconds')})"),
        recorded(
            "run:rankwatch_step_variation:sigma",
            f"sqrt(quantile by ({RUN}) (0.5, {recent(config, 'run_step_variance_ratio')}))",
        ),
        recorded(
            _MARGIN,
            # Steps vary, and chips differ for good. The median rank of few may be any of them, so how far the
            # last of them is expected to be says enough.
            f"""
                {_ARRIVAL}
                * on ({STAGE})
                clamp_min({EXPECTED_MAXIMUM.format(ranks=f"({RANKS} > 1)")}, 0)
                * on ({RUN}) group_left ()
                sqrt(run:rankwatch_step_variation:sigma ^ 2 + run:rankwatch_step_local_seconds:spread ^ 2)
            """,
        ),
    )


def cost_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Seconds per step that others wait for a rank whose residual is high, and their parts."""
    return (
        recorded(
            LATER,
            f"""
                (
                  {of_high(config, "step_arrival_seconds")}
                  - on ({STAGE}) group_left ()
                  {_ARRIVAL}
                )
                < on ({RANK}, stage)
                {HIGH_EXCESS}
                or
                {HIGH_EXCESS}
            """,
        ),
        recorded(_LATE_STEPS, of_high(config, "late_steps_ratio")),
        recorded(LATE_EXCESS, of_high(config, "late_step_seconds")),
        recorded(_IN_LATE_STEPS, f"{LATER} * clamp_max({LATE_EXCESS} / {HIGH_EXCESS}, 1)"),
        recorded(COST, _cost()),
    )


def of_high(config: RuleConfig, name: str) -> str:
    """What agents say of the few ranks that stand out."""
    return f"max by ({RANK}, stage) ({recent(config, name)} and on ({RANK}, stage) {HIGH_EXCESS})"


def _cost() -> str:
    """In late steps and in all others, what exceeds the time at which the last of the others comes."""
    ordinary = f"({LATER} - {_IN_LATE_STEPS} - on ({STAGE}) group_left () {_MARGIN})"
    return f"""
        clamp_min({_IN_LATE_STEPS} + {_LATE_STEPS} * {ordinary}, 0)
        + (1 - {_LATE_STEPS}) * clamp_min({ordinary}, 0)
        or
        clamp_min({LATER}, 0)
    """


def lost_time_rules() -> tuple[RecordingRule, ...]:
    """Share of the run's time by cause, and rank-seconds lost in each second."""
    return (
        recorded(LOST_SHARE, "or\n".join(_shares())),
        recorded(
            "run_cause:rankwatch_lost_rank_seconds:rate",
            f"""
                {LOST_SHARE}
                * on ({RUN}) group_left ()
                sum by ({RUN}) ({RANKS})
            """,
        ),
    )


def _shares() -> Iterator[str]:
    """One cause after the other: of what happens side by side, as in several replicas, the largest counts."""
    in_turn = "cluster, run, group, operation, size_class"
    transfers = f"max by ({in_turn}) (group:rankwatch_network_degraded:share)"
    shares = {
        Cause.SLOW_RANK: f"max by ({RUN}) (1 - 1 / rank:rankwatch_straggler:slowdown)",
        Cause.SLOW_STAGE: f"max by ({RUN}) (1 - 1 / stage:rankwatch_slow_stage:slowdown)",
        Cause.UNEQUAL_BATCHES: "run:rankwatch_unequal_batches:share",
        Cause.DATA_LOADING: "run:rankwatch_slow_data_loading:share",
        Cause.NETWORK: f"clamp_max(sum by ({RUN}) ({transfers}), 1)",
        Cause.JITTER: "run:rankwatch_jitter:share",
    }
    for cause, share in shares.items():
        yield f'label_replace({share}, "cause", "{cause}", "", "")\n'
