"""What do the ranks say to each other?"""

from __future__ import annotations

from rankwatch_dashboards.panels import Panel, Query
from rankwatch_dashboards.selectors import RANKS, RUN, most

_BY = "sum by (group, operation)"

PANELS = (
    Panel(
        title="Time per collective",
        description="Mean time from enqueue to completion, waiting for other ranks included. A rise with no "
        "straggler above points to the network.",
        unit="s",
        queries=(
            Query(
                expression=f"{_BY} (rate(rankwatch_collective_seconds_total{{{RANKS}}}[$__rate_interval])) / "
                f"{_BY} (rate(rankwatch_collectives_total{{{RANKS}}}[$__rate_interval]))",
                legend="{{group}} {{operation}}",
            ),
        ),
    ),
    Panel(
        title="Bytes in collectives",
        description="Input bytes per second over the chosen ranks. It follows the step rate; a change of its "
        "ratio to steps means that the model or its sharding changed.",
        unit="Bps",
        queries=(
            Query(
                expression=f"{_BY} (rate(rankwatch_collective_bytes_total{{{RANKS}}}[$__rate_interval]))",
                legend="{{group}} {{operation}}",
            ),
        ),
    ),
    Panel(
        title="Collectives behind",
        description="How many collectives a rank has completed less than the first of its group; the largest "
        "20. A gap that stays is a hang, and the rank with the gap is where to look.",
        unit="short",
        queries=(
            Query(
                expression=most(
                    f"max by (cluster, run, group) (rankwatch_collective_last_completed{{{RUN}}}) "
                    "- on (cluster, run, group) group_right () "
                    f"rankwatch_collective_last_completed{{{RANKS}}}"
                ),
                legend="rank {{rank}} on {{node}} {{group}}",
            ),
        ),
    ),
)
