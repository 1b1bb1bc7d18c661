"""Rows: is anything broken on the nodes, and what do network, host and disks do?"""

from __future__ import annotations

from rankwatch_alerts import HARDWARE_ALERTS, RuleConfig
from rankwatch_dashboards.firing import firing, named
from rankwatch_dashboards.links import TO_NODE
from rankwatch_dashboards.panels import CLUSTER, NODE, Drawing, Panel, Query, most

_RATE = "[$__rate_interval]"
_CLOCK_AHEAD = "node:rankwatch_host_clock_ahead_seconds:max"
_MEDIAN_CLOCK = f"quantile by (cluster) (0.5, {_CLOCK_AHEAD}{{{CLUSTER}}})"


def _by(labels: str, expression: str, series: int = 20) -> str:
    return most(f"max by (cluster, node, {labels}) ({expression})", series)


def _panel(
    title: str,
    description: str,
    unit: str,
    expression: str,
    more: str = "",
    *,
    threshold: float | None = None,
    drawing: Drawing = Drawing.LINES,
) -> Panel:
    """One query by node; `more` ends the legend."""
    return Panel(
        title=title,
        description=description,
        unit=unit,
        drawing=drawing,
        threshold=threshold,
        queries=(Query(expression=expression, legend=f"{{{{node}}}} {more}".strip()),),
        links=(TO_NODE,),
    )


FAULTS = (
    Panel(
        title="Firing alerts on hardware",
        description="Each band is an alert, with the part that it names. Its runbook says what it means and "
        "which commands to run.",
        unit="short",
        drawing=Drawing.STATES,
        span=16,
        empty_when_healthy=True,
        queries=(
            Query(
                expression=most(
                    "max by (cluster, node, gpu, device, alertname, reason) "
                    f"({firing(f'{NODE}, {named(HARDWARE_ALERTS)}')})",
                    64,
                ),
                legend="{{alertname}} {{reason}} {{node}} {{gpu}}{{device}}",
            ),
        ),
        links=(TO_NODE,),
    ),
    _panel(
        "State of the driver",
        "in_use is sound. unresponsive: a call did not return, RankwatchGpuFault (driver_unresponsive); "
        "then nothing is known of the node's GPUs.",
        "short",
        _by("state", f"rankwatch_gpu_driver_state{{{NODE}}}", 64),
        "{{state}}",
        drawing=Drawing.STATES,
    ),
    _panel(
        "Services of the driver",
        "1 where a service runs. Without the fabric manager no process starts on GPUs with NVSwitch: "
        "RankwatchGpuFault (nvlink_down).",
        "short",
        f"bottomk(20, max by (cluster, node, service) (rankwatch_nvidia_service_running{{{NODE}}}))",
        "{{service}}",
    ),
    _panel(
        "Errors of NVSwitches",
        "SXid errors of NVSwitches in the kernel log, per second and code. A fatal one cuts GPUs off from "
        "each other: RankwatchGpuFault (nvlink_down).",
        "short",
        _by("sxid, severity", f"rate(rankwatch_nvswitch_sxid_errors_total{{{NODE}}}{_RATE})"),
        "SXid {{sxid}} {{severity}}",
    ),
    _panel(
        "Faults in the kernel log",
        "Lines of the kernel log that report a known fault, per second and event. Any of them is worth a "
        "look: dmesg on that node has the line.",
        "short",
        _by("event", f"rate(rankwatch_kernel_log_events_total{{{NODE}}}{_RATE})"),
        "{{event}}",
    ),
)


def network(config: RuleConfig) -> tuple[Panel, ...]:
    """Panels whose threshold is that of the alert."""
    return (
        *_RDMA,
        _panel(
            "Errors of interfaces",
            "Receive and transmit errors per second. Above the line for minutes: RankwatchLinkErrors (nic). "
            "Both ends of a cable: the cable.",
            "short",
            _by(
                "device",
                f"rate(rankwatch_network_receive_errors_total{{{NODE}}}{_RATE}) "
                f"+ rate(rankwatch_network_transmit_errors_total{{{NODE}}}{_RATE})",
            ),
            "{{device}}",
            threshold=config.network_error_rate,
        ),
        *_INTERFACES,
    )


_RDMA = (
    _panel(
        "RDMA ports",
        "State of each port. Anything but active on a port with a cable: RankwatchLinkDown (rdma); a rail "
        "that is down on many nodes is a switch.",
        "short",
        _by("device, port, state", f"rankwatch_rdma_port_state{{{NODE}}}", 64),
        "{{device}}/{{port}} {{state}}",
        drawing=Drawing.STATES,
    ),
    _panel(
        "RDMA traffic",
        "Bytes per second sent by each port, the busiest 20. One rail far below the others has a slow or "
        "missing link.",
        "Bps",
        _by("device, port", f"rate(rankwatch_rdma_transmit_bytes_total{{{NODE}}}{_RATE})"),
        "{{device}}/{{port}}",
    ),
    _panel(
        "RDMA errors",
        "Errors per second by counter, the largest 20. RankwatchLinkErrors (rdma) knows the limit of each; "
        "symbol errors mean cable or transceiver.",
        "short",
        _by("device, port, counter", f"rate(rankwatch_rdma_errors_total{{{NODE}}}{_RATE})"),
        "{{device}}/{{port}} {{counter}}",
    ),
    _panel(
        "RDMA links lost",
        "Times per second that a link went down. Several within an hour: RankwatchLinkDown (flapping); each "
        "one stops collectives for seconds.",
        "short",
        _by("device, port", f"rate(rankwatch_rdma_link_downed_total{{{NODE}}}{_RATE})"),
        "{{device}}/{{port}}",
    ),
    _panel(
        "Congestion",
        "Signs of congestion control per second (CNP, ECN). They are normal; one node far above the others "
        "is where traffic meets.",
        "short",
        _by("device, port, counter", f"rate(rankwatch_rdma_congestion_total{{{NODE}}}{_RATE})"),
        "{{device}}/{{port}} {{counter}}",
    ),
)
_INTERFACES = (
    _panel(
        "Traffic of interfaces",
        "Bytes per second sent by each interface, the busiest 20. An interface that fell to 0 while the run "
        "goes on is no longer used.",
        "Bps",
        _by("device", f"rate(rankwatch_network_transmit_bytes_total{{{NODE}}}{_RATE})"),
        "{{device}}",
    ),
    _panel(
        "Links lost by interfaces",
        "Times per second that an interface lost its carrier. Three within an hour: RankwatchLinkErrors "
        "(nic); look at cable and switch port.",
        "short",
        _by("device", f"rate(rankwatch_network_link_flaps_total{{{NODE}}}{_RATE})"),
        "{{device}}",
    ),
    _panel(
        "Paused time",
        "Share of time in which a link was paused by its peer (receive) or paused it (transmit). Above a few "
        "percent the fabric is congested.",
        "percentunit",
        _by("device, direction, priority", f"rate(rankwatch_network_pause_seconds_total{{{NODE}}}{_RATE})"),
        "{{device}} {{direction}} {{priority}}",
    ),
)


def host(config: RuleConfig) -> tuple[Panel, ...]:
    """Panels whose threshold is that of the alert."""
    return (
        *_HOST,
        _panel(
            "Free space for checkpoints",
            "Free share of the file systems of checkpoints, the fullest 20. Below the line: "
            "RankwatchCheckpointAtRisk (disk_filling); the next save may fail.",
            "percentunit",
            f"bottomk(20, max by (cluster, node, path) (rankwatch_filesystem_available_bytes{{{NODE}}}) "
            f"/ max by (cluster, node, path) (rankwatch_filesystem_size_bytes{{{NODE}}}))",
            "{{path}}",
            threshold=config.disk_free_share,
        ),
    )


_HOST = (
    _panel(
        "CPU in use",
        "Share of all CPUs that is not idle, the busiest 20 nodes. Above 90 % data loaders and kernel "
        "launches are late.",
        "percentunit",
        most(
            "sum by (cluster, node) "
            f'(rate(rankwatch_host_cpu_seconds_total{{{NODE}, mode!~"idle|iowait"}}{_RATE}))'
            f" / max by (cluster, node) (rankwatch_host_cpus{{{NODE}}})"
        ),
    ),
    _panel(
        "Memory in use",
        "Share of memory that is not available, the fullest 20 nodes. Near 100 % the OOM killer comes next: "
        "RankwatchHostFault (oom_kill).",
        "percentunit",
        most(
            f"1 - max by (cluster, node) (rankwatch_host_memory_available_bytes{{{NODE}}})"
            f" / max by (cluster, node) (rankwatch_host_memory_total_bytes{{{NODE}}})"
        ),
    ),
    _panel(
        "OOM kills",
        "Processes that the kernel killed for lack of memory, per second. Any: RankwatchHostFault "
        "(oom_kill); a rank that was lost at that time is explained.",
        "short",
        most(f"max by (cluster, node) (rate(rankwatch_host_oom_kills_total{{{NODE}}}{_RATE}))"),
    ),
    _panel(
        "Waiting for a resource",
        "Share of time in which at least one task waited for CPU, memory or disk. Above 20 % for one "
        "resource, that resource slows the ranks down.",
        "percentunit",
        _by("resource", f"rate(rankwatch_host_pressure_waiting_seconds_total{{{NODE}}}{_RATE})"),
        "{{resource}}",
    ),
    _panel(
        "Error of clocks",
        "How far each node's clock may be off, the worst 20. It grows without end where no time daemon runs; "
        "above 0.1 s the time lines and traces of several nodes do not fit together.",
        "s",
        most(f"max by (cluster, node) (rankwatch_host_clock_max_error_seconds{{{NODE}}})"),
    ),
    _panel(
        "Clocks that differ",
        "How far each node's clock is from that of the median node, the 20 that differ most. Above "
        "1 s for minutes: RankwatchHostFault (clock).",
        "s",
        most(f"abs({_CLOCK_AHEAD}{{{NODE}}} - on (cluster) group_left () {_MEDIAN_CLOCK})"),
    ),
    _panel(
        "Processes stuck in the kernel",
        "Processes in state D, which wait for a disk, a file server or a driver. Several for minutes: what "
        "they wait for hangs; see the file servers below and the state of the driver.",
        "short",
        most(f"max by (cluster, node) (rankwatch_host_processes_uninterruptible{{{NODE}}})"),
    ),
    _panel(
        "Latency of file servers",
        "Mean seconds of an NFS operation, from request to answer. Ten times its usual value: data loading "
        "and saves wait for the server.",
        "s",
        _by(
            "path, operation",
            f"rate(rankwatch_nfs_operation_seconds_total{{{NODE}}}{_RATE}) "
            f"/ (rate(rankwatch_nfs_operations_total{{{NODE}}}{_RATE}) > 0)",
        ),
        "{{path}} {{operation}}",
    ),
    _panel(
        "Free space of mounts of runs",
        "Free share of each file system that a run sees, the fullest 20. One that fills up ends the run at "
        "its next write there.",
        "percentunit",
        "bottomk(20, max by (cluster, node, run, path) "
        f"(rankwatch_run_mount_available_bytes{{{NODE}}} / rankwatch_run_mount_size_bytes{{{NODE}}}))",
        "{{run}} {{path}}",
    ),
    _panel(
        "Mounts that answer",
        "1 where the file system of a run answers, 0 where it does not: its server is dead or cut off, and "
        "each process that touches it hangs. The worst 20.",
        "short",
        f"bottomk(20, max by (cluster, node, run, path) (rankwatch_run_mount_responding{{{NODE}}}))",
        "{{run}} {{path}}",
    ),
    _panel(
        "Latency of writes",
        "Mean seconds of a write to the disk under a checkpoint path. Ten times its usual value: saves take "
        "longer, and with them the steps.",
        "s",
        _by(
            "path, device",
            f"rate(rankwatch_disk_write_seconds_total{{{NODE}}}{_RATE}) "
            f"/ (rate(rankwatch_disk_writes_total{{{NODE}}}{_RATE}) > 0)",
        ),
        "{{path}} {{device}}",
    ),
)
