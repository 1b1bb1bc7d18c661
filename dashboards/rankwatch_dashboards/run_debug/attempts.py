"""Row: which attempts were there, and how did they end?"""

from __future__ import annotations

from rankwatch_dashboards.checkpoints_goodput.life import ENDS
from rankwatch_dashboards.panels import RUN, YELLOW, Drawing, Panel, Query, most

ATTEMPTS = (
    Panel(
        title="Attempts",
        description="Number of the attempt over time. Many short bands are a loop of crashes: "
        "RankwatchRunFailed (restarts_fail); the table below has the exits.",
        unit="short",
        drawing=Drawing.STATES,
        span=12,
        height=5,
        queries=(
            Query(expression=f"max by (run) (rankwatch_run_attempt{{{RUN}}})", legend="{{run}} attempt"),
        ),
    ),
    Panel(
        title="Ranks that do not run",
        description="Ranks that start, have ended or are lost, the first 50, over time. All at once: the "
        "launcher or the scheduler; one alone: look at its exit below.",
        unit="short",
        drawing=Drawing.STATES,
        span=12,
        height=5,
        steps=((1, YELLOW),),
        empty_when_healthy=True,
        queries=(
            Query(
                expression=most(
                    f'max by (rank, node, state) (rankwatch_rank_state{{{RUN}, state!="running"}})', 50
                ),
                legend="rank {{rank}} on {{node}}: {{state}}",
            ),
        ),
    ),
    ENDS,
)
