"""Metrics of the host, its network and disks, XID errors, and the kernel log about GPUs and NICs."""

from __future__ import annotations

from rankwatch.conventions.declaration import counter, gauge, info
from rankwatch.conventions.labels import Label

_DEVICE = (Label.DEVICE,)
_PATH = (Label.PATH,)

HOST = (
    counter(
        "rankwatch_host_cpu_seconds_total",
        "seconds",
        (Label.MODE,),
        "CPU time of the host by mode, summed over all CPUs (/proc/stat).",
    ),
    gauge("rankwatch_host_cpus", "1", (), "Logical CPUs online (/proc/stat)."),
    gauge("rankwatch_host_load1", "1", (), "Load average over one minute (/proc/loadavg)."),
    gauge("rankwatch_host_memory_total_bytes", "bytes", (), "Memory of the host (/proc/meminfo MemTotal)."),
    gauge(
        "rankwatch_host_memory_available_bytes",
        "bytes",
        (),
        "Memory available without swapping (/proc/meminfo MemAvailable).",
    ),
    counter(
        "rankwatch_host_oom_kills_total",
        "1",
        (),
        "Processes that the kernel killed because memory ran out (/proc/vmstat oom_kill).",
    ),
    counter(
        "rankwatch_host_pressure_waiting_seconds_total",
        "seconds",
        (Label.RESOURCE,),
        "Time in which at least one task waited for cpu, memory or io (/proc/pressure, some).",
    ),
    gauge(
        "rankwatch_host_clock_offset_seconds",
        "seconds",
        (),
        "What the kernel has still to correct of the node's clock (adjtimex); chronyd leaves it at about 0.",
    ),
    gauge("rankwatch_host_clock_synchronised", "1", (), "1 if a time daemon keeps the node's clock right."),
    gauge(
        "rankwatch_host_clock_max_error_seconds",
        "seconds",
        (),
        "How far the node's clock may be off; it grows while no time daemon sets it.",
    ),
    gauge(
        "rankwatch_host_time_seconds",
        "seconds",
        (),
        "Unix time by the node's clock when the agent was asked: rules compare it between nodes.",
    ),
)

NETWORK = (
    counter("rankwatch_network_receive_bytes_total", "bytes", _DEVICE, "Bytes received by the interface."),
    counter("rankwatch_network_transmit_bytes_total", "bytes", _DEVICE, "Bytes sent by the interface."),
    counter("rankwatch_network_receive_errors_total", "1", _DEVICE, "Receive errors of the interface."),
    counter("rankwatch_network_transmit_errors_total", "1", _DEVICE, "Transmit errors of the interface."),
    counter("rankwatch_network_receive_drops_total", "1", _DEVICE, "Packets dropped on receive."),
    counter("rankwatch_network_transmit_drops_total", "1", _DEVICE, "Packets dropped on transmit."),
    counter(
        "rankwatch_network_carrier_changes_total",
        "1",
        _DEVICE,
        "Changes of the link's carrier. A flap has two of them.",
    ),
    gauge("rankwatch_network_up", "1", _DEVICE, "1 if the operational state of the interface is up."),
    gauge(
        "rankwatch_network_speed_bytes",
        "bytes",
        _DEVICE,
        "Speed of the link in bytes per second, if the driver reports it.",
    ),
    counter(
        "rankwatch_tcp_sent_segments_total",
        "1",
        (),
        "TCP segments sent, without retransmissions (/proc/net/snmp OutSegs).",
    ),
    counter(
        "rankwatch_tcp_retransmitted_segments_total",
        "1",
        (),
        "TCP segments retransmitted (/proc/net/snmp RetransSegs).",
    ),
    counter(
        "rankwatch_tcp_timeouts_total",
        "1",
        (),
        "TCP retransmission timeouts (/proc/net/netstat TCPTimeouts).",
    ),
    counter(
        "rankwatch_tcp_listen_drops_total",
        "1",
        (),
        "Connections dropped because a listen queue was full (/proc/net/netstat ListenDrops).",
    ),
)

DISK = (
    gauge("rankwatch_filesystem_size_bytes", "bytes", _PATH, "Size of the file system that holds the path."),
    gauge(
        "rankwatch_filesystem_available_bytes",
        "bytes",
        _PATH,
        "Bytes available to unprivileged users on the file system that holds the path.",
    ),
    gauge(
        "rankwatch_filesystem_read_only",
        "1",
        _PATH,
        "1 if the file system that holds the path is mounted read-only.",
    ),
    counter(
        "rankwatch_disk_reads_total",
        "1",
        (Label.PATH, Label.DEVICE),
        "Reads completed by the block device under the path (/proc/diskstats).",
    ),
    counter(
        "rankwatch_disk_writes_total",
        "1",
        (Label.PATH, Label.DEVICE),
        "Writes completed by the block device under the path.",
    ),
    counter(
        "rankwatch_disk_read_seconds_total",
        "seconds",
        (Label.PATH, Label.DEVICE),
        "Time spent in reads. Divided by the reads it is their mean latency.",
    ),
    counter(
        "rankwatch_disk_write_seconds_total",
        "seconds",
        (Label.PATH, Label.DEVICE),
        "Time spent in writes. Divided by the writes it is their mean latency.",
    ),
    counter(
        "rankwatch_disk_io_seconds_total",
        "seconds",
        (Label.PATH, Label.DEVICE),
        "Time in which the block device under the path was busy.",
    ),
)

PROCESSES = (
    gauge(
        "rankwatch_host_processes_uninterruptible",
        "1",
        (),
        "Processes that wait in the kernel and cannot be killed (state D), without the kernel's own threads.",
    ),
    gauge(
        "rankwatch_rank_uninterruptible_threads",
        "1",
        (Label.RUN, Label.RANK),
        "Threads of the rank's process that wait in the kernel and cannot be killed (state D): for a disk, "
        "a file server or a driver.",
    ),
    gauge(
        "rankwatch_nvidia_service_running",
        "1",
        (Label.SERVICE,),
        "1 where the service runs: fabric_manager, persistenced, imex, hostengine. 0 once it ran and is "
        "gone; for fabric_manager also where NVSwitches are on the PCI bus.",
    ),
)

_MOUNT = (Label.RUN, Label.PATH)
_NFS = (Label.PATH, Label.SOURCE)

MOUNTS = (
    info(
        "rankwatch_run_mount_info",
        (*_MOUNT, Label.SOURCE, Label.TYPE),
        "A file system that the processes of the run on this node see, by their mount table; always 1.",
    ),
    gauge("rankwatch_run_mount_size_bytes", "bytes", _MOUNT, "Size of the file system."),
    gauge(
        "rankwatch_run_mount_available_bytes",
        "bytes",
        _MOUNT,
        "Bytes available to unprivileged users on the file system.",
    ),
    gauge("rankwatch_run_mount_read_only", "1", _MOUNT, "1 if the file system is mounted read-only."),
    gauge(
        "rankwatch_run_mount_responding",
        "1",
        _MOUNT,
        "1 if the file system answered within 2 s, 0 if not: its server is gone or stuck.",
    ),
    counter(
        "rankwatch_nfs_operations_total",
        "1",
        (*_NFS, Label.OPERATION),
        "NFS requests: read, write, commit, open, getattr, lookup, other (/proc/PID/mountstats).",
    ),
    counter(
        "rankwatch_nfs_operation_seconds_total",
        "seconds",
        (*_NFS, Label.OPERATION),
        "Time from the NFS requests to their ends. Divided by the operations it is their mean latency.",
    ),
    counter("rankwatch_nfs_retransmissions_total", "1", _NFS, "NFS requests that were sent again."),
    counter("rankwatch_nfs_timeouts_total", "1", _NFS, "NFS requests without an answer in time (timeo)."),
    counter("rankwatch_nfs_read_bytes_total", "bytes", _NFS, "Bytes read from the NFS server."),
    counter("rankwatch_nfs_write_bytes_total", "bytes", _NFS, "Bytes written to the NFS server."),
)

XIDS = (
    counter(
        "rankwatch_gpu_xid_errors_total",
        "1",
        (Label.GPU, Label.XID),
        "XID errors by code: the larger of the counts from NVML events and from the kernel log, so that an "
        "error that both report counts once. `gpu` is the PCI bus id while the UUID is unknown; `other` "
        "counts the codes beyond the first 64 of a GPU.",
    ),
    gauge(
        "rankwatch_gpu_xid_last_timestamp_seconds",
        "seconds",
        (Label.GPU, Label.XID),
        "Unix time of the last XID error of this code. From the kernel log it is boot time plus the log's "
        "own clock, which may be off by seconds after weeks.",
    ),
    counter(
        "rankwatch_gpu_xid_events_total",
        "1",
        (Label.GPU, Label.SEVERITY),
        "XID errors by severity (info, application, warning, critical): from the table, for NVLink 5 "
        "(144-150) from the kernel log. 0 before the first error, so that the first one is an increase.",
    ),
    counter(
        "rankwatch_gpu_xid_subcode_errors_total",
        "1",
        (Label.GPU, Label.XID, Label.SUBCODE, Label.ACTION),
        "NVLink 5 errors (XID 144-150) in the kernel log by the part of NVLink that the driver names, and by "
        "the action that NVIDIA's table gives for the registers in the line (reset_gpu, none, "
        "follow_recovery_action); `other` counts the subcodes that the table lacks.",
    ),
    info(
        "rankwatch_xid_info",
        (Label.XID, Label.SEVERITY, Label.ACTION, Label.MEANING),
        "What an XID code that has occurred means, and what to do; always 1.",
    ),
)

KERNEL_LOG = (
    counter(
        "rankwatch_kernel_log_events_total",
        "1",
        (Label.EVENT,),
        "Lines of the kernel log (/dev/kmsg) that report a known fault of GPU, NIC or host, by event. Lines "
        "since boot that the kernel still holds when the agent starts count too.",
    ),
    counter(
        "rankwatch_nvswitch_sxid_errors_total",
        "1",
        (Label.PCI_BUS_ID, Label.SXID, Label.SEVERITY),
        "Errors of an NVSwitch in the kernel log by code, fatal and nonfatal; `other` counts the codes "
        "beyond 512 counts.",
    ),
    counter(
        "rankwatch_kernel_log_records_missed_total",
        "1",
        (),
        "Records of the kernel log that were overwritten before the agent read them, from the gaps in their "
        "sequence.",
    ),
)
