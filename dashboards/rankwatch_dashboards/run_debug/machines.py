"""Rows: what do the nodes of the run do, and can the data be trusted?"""

from __future__ import annotations

from rankwatch_alerts import HARDWARE_ALERTS
from rankwatch_dashboards.firing import firing, named
from rankwatch_dashboards.links import TO_GPU, TO_NODE
from rankwatch_dashboards.panels import (
    CLUSTER,
    GREEN,
    MOST_SERIES,
    ON_ITS_NODES,
    ORANGE,
    RANKS,
    RUN,
    Column,
    Drawing,
    Panel,
    Query,
    highest,
    most,
)

_RATE = "[$__rate_interval]"


def _of_nodes(expression: str) -> str:
    return most(f"({expression}) {ON_ITS_NODES}")


def _rate(counter: str, more: str = "") -> str:
    return f"sum by (cluster, node) (rate({counter}{{{CLUSTER}{more}}}{_RATE}))"


NODES = (
    Panel(
        title="CPU in use",
        description="Share of all CPUs that is not idle, the busiest 20 nodes. Above 90 % data loaders and "
        "kernel launches are late: a straggler with phase data_loading or other.",
        unit="percentunit",
        queries=(
            Query(
                expression=_of_nodes(
                    _rate("rankwatch_host_cpu_seconds_total", ', mode!~"idle|iowait"')
                    + f" / max by (cluster, node) (rankwatch_host_cpus{{{CLUSTER}}})"
                ),
                legend="{{node}}",
            ),
        ),
        links=(TO_NODE,),
    ),
    Panel(
        title="Memory in use",
        description="Share of memory that is not available, the fullest 20 nodes. Near 100 % the OOM killer "
        "comes next: RankwatchRunFailed (ranks_lost).",
        unit="percentunit",
        queries=(
            Query(
                expression=_of_nodes(
                    f"1 - max by (cluster, node) (rankwatch_host_memory_available_bytes{{{CLUSTER}}}) / "
                    f"max by (cluster, node) (rankwatch_host_memory_total_bytes{{{CLUSTER}}})"
                ),
                legend="{{node}}",
            ),
        ),
        links=(TO_NODE,),
    ),
    Panel(
        title="Memory of ranks",
        description="Resident memory of each rank's process, without data-loader workers; the 20 largest. "
        "Steady growth ends in the OOM killer.",
        unit="bytes",
        queries=(
            Query(
                expression=highest(f"rankwatch_rank_resident_memory_bytes{{{RANKS}}}"),
                legend="rank {{rank}} on {{node}}",
            ),
        ),
    ),
    Panel(
        title="GPU memory reserved by torch",
        description="Memory that torch's allocator holds for each rank, the 20 largest. Far above what "
        "tensors hold (rankwatch_rank_gpu_memory_allocated_bytes) it is fragmented or cached.",
        unit="bytes",
        queries=(
            Query(
                expression=highest(f"rankwatch_rank_gpu_memory_reserved_bytes{{{RANKS}}}"),
                legend="rank {{rank}} on {{node}}",
            ),
        ),
    ),
    Panel(
        title="GPU allocation retries",
        description="Times per second that torch's allocator gave back its cache and tried again. Above zero "
        "the GPU's memory is nearly full, and each retry stalls the rank.",
        unit="short",
        queries=(
            Query(
                expression=most(
                    "sum by (rank, node) (rate(rankwatch_rank_gpu_memory_retries_total"
                    f"{{{RANKS}}}[$__rate_interval]))"
                ),
                legend="rank {{rank}} on {{node}}",
            ),
        ),
    ),
    Panel(
        title="OOM kills",
        description="Processes killed by the kernel for lack of memory, per second. Above zero a lost rank "
        "is explained.",
        unit="short",
        queries=(Query(expression=_of_nodes(_rate("rankwatch_host_oom_kills_total")), legend="{{node}}"),),
        links=(TO_NODE,),
    ),
    Panel(
        title="Network traffic",
        description="Bytes per second received and sent over all interfaces, the busiest 20 nodes. One node "
        "far below the others holds a rank that waits or a link that is slow.",
        unit="Bps",
        queries=(
            Query(
                expression=_of_nodes(_rate("rankwatch_network_receive_bytes_total")),
                legend="{{node}} received",
            ),
            Query(
                expression=_of_nodes(_rate("rankwatch_network_transmit_bytes_total")), legend="{{node}} sent"
            ),
        ),
    ),
    Panel(
        title="Network errors and drops",
        description="Errors and drops per second over all interfaces. Above zero on one node while its "
        "collectives are slow: a cable, a port, a full queue.",
        unit="short",
        queries=(
            Query(
                expression=_of_nodes(
                    " + ".join(
                        _rate(f"rankwatch_network_{way}_{what}_total")
                        for way in ("receive", "transmit")
                        for what in ("errors", "drops")
                    )
                ),
                legend="{{node}}",
            ),
        ),
        links=(TO_NODE,),
    ),
    Panel(
        title="TCP retransmits",
        description="Share of sent TCP segments that were sent again, the worst 20 nodes. Above 0.1 % "
        "collectives over TCP slow down for everyone.",
        unit="percentunit",
        queries=(
            Query(
                expression=_of_nodes(
                    _rate("rankwatch_tcp_retransmitted_segments_total")
                    + " / ("
                    + _rate("rankwatch_tcp_sent_segments_total")
                    + " > 0)"
                ),
                legend="{{node}}",
            ),
        ),
        links=(TO_NODE,),
    ),
    Panel(
        title="GPUs of the run",
        description="Share of time in which a kernel ran, the least busy 20 GPUs that ranks of the run work "
        "on. One far below its peers is broken, slow or waits for data; click on it for its hardware.",
        unit="percentunit",
        queries=(
            Query(
                expression=f"bottomk({MOST_SERIES}, max by (cluster, node, gpu) "
                f"(rankwatch_gpu_utilization_ratio{{{CLUSTER}}}) "
                "* on (cluster, node, gpu) group_left (rank) "
                f"(gpu:rankwatch_rank_start_timestamp_seconds:latest{{{RANKS}}} > bool 0))",
                legend="rank {{rank}} on {{node}} {{gpu}}",
            ),
        ),
        links=(TO_GPU,),
    ),
    Panel(
        title="Faults of its hardware",
        description="Firing alerts on hardware that ranks of the run use. Each one names the part, what it "
        "means and what to do; its runbook has the commands.",
        unit="short",
        drawing=Drawing.STATES,
        empty_when_healthy=True,
        queries=(
            Query(
                expression=most(
                    "max by (cluster, node, gpu, device, alertname, reason) "
                    f"({firing(f'{CLUSTER}, {named(HARDWARE_ALERTS)}')} {ON_ITS_NODES})"
                ),
                legend="{{alertname}} {{reason}} {{node}} {{gpu}}{{device}}",
            ),
        ),
        links=(TO_NODE,),
    ),
)


TELEMETRY = (
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
                expression=highest(f"rankwatch_instrumentation_errors{{{RANKS}}}"),
                legend="rank {{rank}} on {{node}}",
            ),
        ),
    ),
    Panel(
        title="What the recording sees",
        description="What zero-code recording sees of the training loop, and why not the rest. Panels of "
        "what is not visible stay empty: that is no zero. Record it by hand (docs/instrumentation.md).",
        no_data="the run records itself by hand, so nothing had to be found out.",
        unit="short",
        drawing=Drawing.TABLE,
        sorted_by=("A",),
        queries=(
            Query(
                expression=most(
                    f"min by (run, capability, reason) (rankwatch_run_capability_visible{{{RUN}}})", 50
                ),
                legend="{{capability}}: {{reason}}",
            ),
        ),
        columns=(
            Column(name="capability", title="Capability"),
            Column(
                name="A",
                title="Seen",
                width=110,
                mappings=(("0", "not visible", ORANGE), ("1", "visible", GREEN)),
            ),
            Column(name="reason", title="Reason"),
        ),
    ),
    Panel(
        title="Agents of the run",
        description="Version of the agent on each node of the run. A node without a band has no agent, and "
        "what its ranks do is not seen.",
        unit="short",
        drawing=Drawing.STATES,
        queries=(
            Query(
                expression=most(
                    'max by (cluster, node, version) (rankwatch_agent_info{cluster=~"$cluster"}) '
                    + ON_ITS_NODES,
                    50,
                ),
                legend="{{node}} {{version}}",
            ),
        ),
    ),
    Panel(
        title="Black boxes left out",
        description="Black boxes that the agents of these nodes could not follow, per second and reason. "
        "Any: RankwatchTelemetryIncomplete (black_boxes), and ranks are missing from all other panels.",
        unit="short",
        queries=(
            Query(
                expression=most(
                    "sum by (cluster, node, reason) "
                    '(rate(rankwatch_blackbox_faults_total{cluster=~"$cluster"}[$__rate_interval])) '
                    + ON_ITS_NODES
                ),
                legend="{{node}} {{reason}}",
            ),
        ),
    ),
    Panel(
        title="Collectors",
        description="Outcome of each collector's last run on the nodes of the run. Failed raises "
        "RankwatchTelemetryIncomplete (collector); not_applicable means that the hardware is not there.",
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
