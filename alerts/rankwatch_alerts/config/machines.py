"""Settings of the rules on nodes, and on the agents that watch them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Machines:
    """When hardware is faulty, or nobody would see it."""

    throttle_share: float = 0.10
    """Share of the time in which heat or a hardware slowdown may hold a GPU's clocks down."""
    power_brake_share: float = 0.01
    """The same for the power brake, which halves the clocks and never acts on sound power supplies."""
    pcie_load: float = 0.2
    """Utilisation from which a PCIe link must be at its full width and generation; idle links slow down."""
    nvlink_errors: float = 100.0
    """Replayed and corrupted packets of a GPU's NVLinks within `event_window_seconds` that are too many.
    Sound links have a few; a failed recovery counts from the first."""
    link_flaps: float = 3.0
    """Flaps of a link within `link_flap_window_seconds` from which it is about to fail for good."""
    link_flap_window_seconds: float = 3600.0
    """How long a flap counts."""
    network_error_rate: float = 1.0
    """Errors of a network interface per second that are too many."""
    tcp_retransmit_share: float = 0.01
    """Share of TCP segments sent again that is too much: a single stream with segments of 1,460 bytes and a
    round trip of 0.1 ms then reaches at most 0.18 GB/s (1.22 segments a round trip over the root of the loss,
    Mathis et al. 1997)."""
    tcp_least_segments: float = 100000.0
    """Segments that a node must send within `event_window_seconds` for their share to count."""
    rdma_congestion_share: float = 0.01
    """Share of received RoCE packets with a mark of congestion (ECN) that is too much. By DCQCN (SIGCOMM
    2015), switches mark at most 0.01 of them until their queue is longer than its upper limit."""
    rdma_least_packets: float = 100000.0
    """Packets that a device must receive within `step_window_seconds` for their share to count."""
    rdma_resent_rate: float = 1.0
    """Packets of a device per second that are sent again, because no answer came in time or the receiver was
    not ready, that are too many: NVSentinel's limit of timeouts."""
    clock_error_seconds: float = 1.0
    """How far a node's clock may be off, or differ from that of the median node. The kernel's bound grows by
    0.5 ms a second while no time daemon sets the clock; daemons set it at least every 1,024 seconds, which
    keeps the bound near 0.5 s."""
    disk_free_share: float = 0.10
    """Free share of a checkpoint path from which a ticket is raised, however slowly it fills."""
    disk_history_seconds: float = 21600.0
    """History from which it is foreseen when a checkpoint path is full. Holds several checkpoints."""
    disk_ticket_seconds: float = 345600.0
    """Time until a checkpoint path is full from which a ticket is raised: a long weekend."""
    disk_page_seconds: float = 14400.0
    """Time until a checkpoint path in use is full from which a page is raised: the next save may fail."""

    records_missed_share: float = 0.01
    """Share of the records of ranks that the agent did not read in time from which their figures are wrong:
    less than any threshold of the rules on steps."""
    absence_window_seconds: float = 300.0
    """How long a running rank must be silent to count as vanished."""
    absence_lookback_seconds: float = 1800.0
    """How far back the rules look for series that have vanished."""
    absence_for_seconds: float = 60.0
    """How long telemetry must stay absent."""
    agent_down_for_seconds: float = 180.0
    """How long an agent must be down. Longer than it takes to restart, so that a roll-out raises nothing."""
    agents_missing_share: float = 0.5
    """Share of the agents of a cluster that do not answer from which the way to them is the cause: one page,
    not one ticket for each."""
    collector_overdue_intervals: float = 5.0
    """Intervals without success after which a collector counts as failing."""
    collector_for_seconds: float = 300.0
    """How long a collector must stay failed or overdue."""

    ticket_interval_seconds: float = 60.0
    """Interval of rules that no page waits for, and that read something of every node: alerts on telemetry,
    on hosts and other tickets on hardware, and what slows a run down without a rank to blame."""
    missed_seconds: float = 60.0
    """Evaluations that are missing for so long, as after a restart of Prometheus, do not begin the wait for
    persistence anew."""
    memory_seconds: float = 900.0
    """How long ago an alert may have fired to fire again without that wait: the longest outage of
    Prometheus that resolves nothing."""
