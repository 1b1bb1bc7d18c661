"""If no single rank is to blame: stages, data, network, or everyone late in turn?"""

from __future__ import annotations

from rankwatch_alerts import RuleConfig
from rankwatch_dashboards.panels import Panel, Query
from rankwatch_dashboards.selectors import RANKS, RUN, most


def panels(config: RuleConfig) -> tuple[Panel, ...]:
    """Panels whose threshold is that of the alert."""
    return (
        Panel(
            title="Compute of each stage",
            description="Median compute time of a pipeline stage over that of the other stages. A stage "
            "above the line in every replica is cut too large: RankwatchSlowStage.",
            unit="short",
            threshold=config.stage_ratio,
            empty_when_healthy=True,
            queries=(
                Query(
                    expression=most(f"stage:rankwatch_step_compute_seconds:ratio{{{RUN}}}"),
                    legend="stage {{stage}}",
                ),
            ),
        ),
        Panel(
            title="Share of the step that waits for data",
            description="The largest 20 ranks. One rank alone is a straggler with the phase data_loading; "
            "most of them are RankwatchSlowDataLoading.",
            unit="percentunit",
            queries=(
                Query(
                    expression=most(f"rank:rankwatch_step_data_wait:share{{{RANKS}}}"),
                    legend="rank {{rank}} on {{node}}",
                ),
            ),
        ),
        Panel(
            title="Late steps",
            description="Share of the step that steps cost which are late by a quarter or more, all ranks "
            "together. Spread over many ranks it is RankwatchJitter.",
            unit="percentunit",
            queries=(
                Query(expression=f"run:rankwatch_late_step_seconds:share{{{RUN}}}", legend="late steps"),
            ),
        ),
    )
