"""Metrics of the host, its network and its disks."""

from __future__ import annotations

from rankwatch.conventions.declaration import counter, gauge
from rankwatch.conventions.labels import Label

_DEVICE = (Label.DEVICE,)
_PATH = (Label.PATH,)

HOST = (
    counter(
        "rankwatch_host_cpu_seconds_total",
        "seconds",
        (Label.MODE,),
        "CPU time of the host by mode, all CPUs added (/proc/stat).",
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
        "Processes killed by the kernel for lack of memory (/proc/vmstat oom_kill).",
    ),
    counter(
        "rankwatch_host_pressure_waiting_seconds_total",
        "seconds",
        (Label.RESOURCE,),
        "Time in which some task waited for cpu, memory or io (/proc/pressure).",
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
        "Changes of the link's carrier; two make a flap.",
    ),
    gauge("rankwatch_network_up", "1", _DEVICE, "1 where the interface's operational state is up."),
    gauge(
        "rankwatch_network_speed_bytes",
        "bytes",
        _DEVICE,
        "Speed of the link in bytes per second, where the driver says it.",
    ),
    counter(
        "rankwatch_tcp_sent_segments_total",
        "1",
        (),
        "TCP segments sent, retransmits left out (/proc/net/snmp OutSegs).",
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
        "Connections dropped by a full listen queue (/proc/net/netstat ListenDrops).",
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
        "1 where the file system that holds the path is mounted read-only.",
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
        "Time spent in reads; over reads it is their mean latency.",
    ),
    counter(
        "rankwatch_disk_write_seconds_total",
        "seconds",
        (Label.PATH, Label.DEVICE),
        "Time spent in writes; over writes it is their mean latency.",
    ),
    counter(
        "rankwatch_disk_io_seconds_total",
        "seconds",
        (Label.PATH, Label.DEVICE),
        "Time the block device under the path was busy.",
    ),
)
