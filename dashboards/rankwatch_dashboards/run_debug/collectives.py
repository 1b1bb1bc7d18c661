"""What do the ranks say to each other?"""

from __future__ import annotations

from rankwatch_dashboards.panels import Panel, Query
from rankwatch_dashboards.selectors import MOST_SERIES, RANKS, RUN, most

_BY = "sum by (group, operation)"
_PLACE = "cluster, run, group, members, source"

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
                    f"max by ({_PLACE}) (rankwatch_collective_last_completed{{{RUN}}}) "
                    f"- on ({_PLACE}) group_right () "
                    f"rankwatch_collective_last_completed{{{RANKS}}}"
                ),
                legend="rank {{rank}} on {{node}} {{group}} of {{members}}",
            ),
        ),
    ),
    Panel(
        title="Wait share per rank",
        description="Share of the step that a rank waits in collectives for others of its node; the lowest "
        "20. The low line is the rank that the others wait for.",
        unit="percentunit",
        queries=(
            Query(
                expression=f"bottomk({MOST_SERIES}, rank:rankwatch_collective_wait:share{{{RANKS}}})",
                legend="rank {{rank}} on {{node}}",
            ),
        ),
    ),
    Panel(
        title="Transfer time per collective",
        description="Time of the last arriver, the least over the nodes: waiting is left out. A rise with "
        "local time unchanged is the network: RankwatchNetworkDegraded.",
        unit="s",
        queries=(
            Query(
                expression=most(f"group:rankwatch_collective_transfer_seconds:mean{{{RUN}}}"),
                legend="{{group}} of {{members}} {{operation}} {{size_class}}",
            ),
        ),
    ),
    Panel(
        title="Bus bandwidth",
        description="Bytes on the bus per second of transfer, by the formulas of nccl-tests. Compare it with "
        "what nccl-tests reach on the same nodes; small collectives are bound by latency.",
        unit="Bps",
        queries=(
            Query(
                expression=most(f"group:rankwatch_collective_bus_bandwidth:max{{{RUN}}}"),
                legend="{{group}} of {{members}} {{operation}} {{size_class}}",
            ),
        ),
    ),
)
