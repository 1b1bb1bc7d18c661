"""Metrics of RDMA ports, of pause frames and discards, and of the distance between GPUs and NICs."""

from __future__ import annotations

from rankwatch.conventions.declaration import counter, gauge, info
from rankwatch.conventions.labels import Label

_DEVICE = (Label.DEVICE,)
_PORT = (Label.DEVICE, Label.PORT)
_COUNTER = (*_PORT, Label.COUNTER)

LINKS = (
    info(
        "rankwatch_network_info",
        (Label.DEVICE, Label.DRIVER, Label.PCI_BUS_ID, Label.NUMA_NODE, Label.RDMA_DEVICE),
        "Identity of a network interface with hardware behind it; always 1.",
    ),
    gauge("rankwatch_network_mtu_bytes", "bytes", _DEVICE, "Largest packet of the interface (mtu in sysfs)."),
    counter(
        "rankwatch_network_link_flaps_total",
        "1",
        _DEVICE,
        "Times that the link lost its carrier (carrier_down_count).",
    ),
    counter(
        "rankwatch_network_pause_frames_total",
        "1",
        (Label.DEVICE, Label.DIRECTION, Label.PRIORITY),
        "Pause frames by direction and priority (global: without priority), from the driver (ethtool -S).",
    ),
    counter(
        "rankwatch_network_pause_seconds_total",
        "seconds",
        (Label.DEVICE, Label.DIRECTION, Label.PRIORITY),
        "Time in which the link was paused (receive) or paused its peer (transmit), from the driver.",
    ),
    counter(
        "rankwatch_network_discards_total",
        "1",
        (Label.DEVICE, Label.DIRECTION, Label.COUNTER),
        "Packets that the hardware discarded, or that exceeded a cloud's allowance, by the driver's name of "
        "the counter.",
    ),
    counter(
        "rankwatch_network_hardware_errors_total",
        "1",
        (Label.DEVICE, Label.COUNTER),
        "Errors of the wire and of PCIe that the hardware counted, by the driver's name of the counter.",
    ),
)

RDMA = (
    info(
        "rankwatch_rdma_port_info",
        (
            *_PORT,
            Label.LINK_LAYER,
            Label.BOARD,
            Label.FIRMWARE_VERSION,
            Label.HCA_TYPE,
            Label.NETWORK_DEVICE,
            Label.PCI_BUS_ID,
            Label.NUMA_NODE,
        ),
        "Identity of an RDMA port; always 1.",
    ),
    gauge(
        "rankwatch_rdma_port_up",
        "1",
        _PORT,
        "1 if the port is ACTIVE. EFA ports always report that: for them, 1 if their interface is up.",
    ),
    gauge(
        "rankwatch_rdma_port_state",
        "1",
        (*_PORT, Label.STATE),
        "1 for the state of the port: nop, down, init, armed, active, active_defer.",
    ),
    gauge(
        "rankwatch_rdma_port_physical_state",
        "1",
        (*_PORT, Label.STATE),
        "1 for the physical state of the port: sleep, polling, disabled, training, link_up, "
        "link_error_recovery, phy_test.",
    ),
    gauge(
        "rankwatch_rdma_port_rate_bytes",
        "bytes",
        _PORT,
        "Speed of the port in bytes per second. No series while the port is not active.",
    ),
    counter(
        "rankwatch_rdma_receive_bytes_total",
        "bytes",
        _PORT,
        "Bytes received (port_rcv_data times 4; EFA: rx_bytes).",
    ),
    counter(
        "rankwatch_rdma_transmit_bytes_total",
        "bytes",
        _PORT,
        "Bytes sent (port_xmit_data times 4; EFA: tx_bytes).",
    ),
    counter(
        "rankwatch_rdma_receive_packets_total",
        "1",
        _PORT,
        "Packets received (port_rcv_packets; EFA: rx_pkts).",
    ),
    counter(
        "rankwatch_rdma_transmit_packets_total", "1", _PORT, "Packets sent (port_xmit_packets; EFA: tx_pkts)."
    ),
    counter(
        "rankwatch_rdma_transmit_wait_ticks_total",
        "1",
        _PORT,
        "Ticks in which the port had data to send but no credit (port_xmit_wait).",
    ),
    counter(
        "rankwatch_rdma_link_downed_total", "1", _PORT, "Times that the link failed to recover (link_downed)."
    ),
    counter(
        "rankwatch_rdma_errors_total",
        "1",
        _COUNTER,
        "Errors, retransmissions and discards, by the kernel's name of the counter. An empty port means the "
        "device as a whole.",
    ),
    counter(
        "rankwatch_rdma_congestion_total",
        "1",
        _COUNTER,
        "Events of congestion control (CNP, ECN, slow restart), by the kernel's name of the counter. They "
        "are not errors.",
    ),
    counter(
        "rankwatch_rdma_operations_total",
        "1",
        _COUNTER,
        "Other counters of the port, by the kernel's name of the counter.",
    ),
)

AFFINITY = (
    info(
        "rankwatch_gpu_nic_affinity_info",
        (Label.GPU, Label.DEVICE, Label.DISTANCE),
        "A NIC nearest to the GPU, and what lies between them: one PCIe switch (pix), several (pxb), the "
        "host bridge (phb), the NUMA node (node), or the link between sockets (sys); always 1.",
    ),
)
