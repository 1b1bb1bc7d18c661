"""Data starvation: most ranks that load data wait for it. One rank that waits alone is a straggler."""

from __future__ import annotations

from rankwatch.conventions import SlowPhase
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.promql import promql
from rankwatch_alerts.recording.steps import RANK
from rankwatch_alerts.recording.stragglers import STAGE
from rankwatch_alerts.rules import RecordingRule


def starvation_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Share of the step by rank; by run that of the stage which loads data, where most of its ranks wait.

    In a pipeline only some stages load data, so a run is judged by the stage that waits most. A rank
    that holds a stage alone may be at fault itself; in a run of one rank nobody else is there to ask.
    """
    share = "rank:rankwatch_step_data_wait:share"
    return (
        RecordingRule(
            record=share,
            expression=promql(f"""
                rank_phase:rankwatch_step_local_seconds:mean{{phase="{SlowPhase.DATA_LOADING}"}}
                / on ({RANK}, stage)
                (rank:rankwatch_step_seconds:mean > 0)
            """),
        ),
        RecordingRule(
            record="run:rankwatch_slow_data_loading:share",
            expression=promql(f"""
                max by (cluster, run) (
                  quantile by ({STAGE}) (0.5, {share})
                  and on ({STAGE})
                  (
                    count by ({STAGE}) ({share} > {config.starvation_share:g})
                    > on ({STAGE})
                    0.5 * stage:rankwatch_ranks:count
                  )
                  and on ({STAGE})
                  (
                    stage:rankwatch_ranks:count > 1
                    or on ({STAGE})
                    stage:rankwatch_ranks:count
                    and on (cluster, run)
                    (sum by (cluster, run) (stage:rankwatch_ranks:count) == 1)
                  )
                )
                > {config.starvation_share:g}
            """),
        ),
    )
