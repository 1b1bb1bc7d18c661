"""Can the rows above be believed?"""

from __future__ import annotations

from rankwatch_dashboards.panels import Drawing, Panel, Query
from rankwatch_dashboards.selectors import ON_ITS_NODES, RANKS, most

PANELS = (
    Panel(
        title="Records missed",
        description="Black-box records overwritten or torn before the agent read them, per second. Above "
        "zero step and phase times are a sample: the agent is too slow or the ring too small.",
        unit="short",
        queries=(
            Query(
                expression=most(
                    "sum by (rank, node) (rate(rankwatch_blackbox_records_missed_total"
                    f"{{{RANKS}}}[$__rate_interval]))"
                ),
                legend="rank {{rank}} on {{node}}",
            ),
        ),
    ),
    Panel(
        title="Instrumentation errors",
        description="Errors swallowed inside the instrumentation, the worst 20 ranks. Above zero some of its "
        "records are missing; the trainer's log names the first.",
        unit="short",
        queries=(
            Query(
                expression=most(f"rankwatch_instrumentation_errors{{{RANKS}}}"),
                legend="rank {{rank}} on {{node}}",
            ),
        ),
    ),
    Panel(
        title="Collectors",
        description="Outcome of each collector's last run on the nodes of the run. Failed raises "
        "RankwatchCollectorFailing; not_applicable means that the hardware is not there.",
        unit="short",
        drawing=Drawing.STATES,
        queries=(
            Query(
                expression=most(
                    "max by (cluster, node, collector, state) "
                    '(rankwatch_collector_state{cluster=~"$cluster"}) ' + ON_ITS_NODES,
                    50,
                ),
                legend="{{node}} {{collector}} {{state}}",
            ),
        ),
    ),
)
