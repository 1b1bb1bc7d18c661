"""Alerts on what connects GPUs and nodes: NVLink, RDMA ports, network interfaces.

A link that is down pages where a run needs it. Errors are tickets, because links send again what they lose:
RankwatchNetworkDegraded and the stalls page once a run feels it.
"""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent
from types import MappingProxyType

from rankwatch_alerts.alerting.alert import listed
from rankwatch_alerts.alerting.hardware import GPU, NETWORK, NODE, THE_GPU, Fault, hardware_alerts, newest
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.hardware import NETWORK_DOWN
from rankwatch_alerts.rules import Alert, AlertRule, duration

_GPU = "cluster, node, gpu"
_PORT = "cluster, node, device, port"
_NIC = "cluster, node, device"
_FABRIC_MANAGER = 'rankwatch_nvidia_service_running{service="fabric_manager"}'
_FAILED_RECOVERY = "recovery|link_recovery_failed|malformed_packet|buffer_overrun"
_THE_PORT = "Port {{ $labels.port }} of RDMA device {{ $labels.device }} on node {{ $labels.node }}"
_NVLINK_BROKEN = "NVLink of a node is broken."
_THE_NIC = "Interface {{ $labels.device }} of node {{ $labels.node }}"

MOST_RDMA_ERRORS: Mapping[str, float] = MappingProxyType(
    {
        "symbol_error": 120 / 3600,
        "link_error_recovery": 5 / 60,
        "port_rcv_errors": 10.0,
        "port_xmit_discards": 100.0,
        "local_ack_timeout_err": 1.0,
        "packet_seq_err": 10.0,
    }
)
"""Errors per second that are too many. 120 symbol errors an hour is the bit error rate of the InfiniBand
specification; the others are the limits of NVSentinel. Not `out_of_sequence`: adaptive routing reorders."""
_MARKED = "np_ecn_marked_roce_packets|RxECNMrkd|rx_ecn_marked_pkts|cc_rx_ce_pkts"
"""Packets that a switch has marked, as mlx5, irdma, bnxt_re and hns_roce count them."""
_RESENT = "roce_adp_retrans|rnr_nak_retry_err|rnr_naks_rcvd|RNR received"
"""Packets sent again because no answer came in time, or the receiver was not ready."""
_BROKEN = "local_link_integrity_errors|excessive_buffer_overrun_errors"
"""Counters of the port itself that stay 0 on a sound one."""


def fabric_alerts(config: RuleConfig) -> tuple[AlertRule, ...]:
    """All alerts on links, those inside the node first."""
    faults = (
        *_nvlink_down(config),
        _nvlink_errors(config),
        _rdma_link_down(config),
        _rdma_device_gone(config),
        _rdma_link_flapping(config),
        _rdma_errors(config),
        *_rdma_congestion(config),
        _nic_down(config),
        *_nic_errors(config),
    )
    return tuple(rule for fault in faults for rule in hardware_alerts(config, fault))


def _nvlink_down(config: RuleConfig) -> tuple[Fault, ...]:
    """Each reason for which GPUs of a node cannot reach each other at full speed."""
    return tuple(
        find(config) for find in (_nvlinks_missing, _fabric_degraded, _nvswitch_fatal, _fabric_manager_gone)
    )


def _nvlinks_missing(config: RuleConfig) -> Fault:
    """Boards leave ports unconnected, so links are compared with those of the other GPUs, and with the number
    that the GPU itself had."""
    event = duration(config.event_window_seconds)
    up = newest("rankwatch_gpu_nvlinks_active", duration(config.absence_window_seconds))
    return Fault(
        alert=Alert.NVLINK_DOWN,
        part=GPU,
        reason="link",
        summary=_NVLINK_BROKEN,
        happened=f"{THE_GPU} has only {{{{ $value }}}} NVLink(s) up, fewer than it had or than the other "
        "GPUs of the node have.",
        page=f"""
            {up} < on (cluster, node) group_left () quantile by (cluster, node) (0.5, {up})
            or
            {up} < max by ({_GPU}) (max_over_time(rankwatch_gpu_nvlinks_active[{event}]))
        """,
        if_used="Its collectives fail, or take the way over PCIe. [[Restart the run on another node]].",
        if_idle="[[Drain the node, reset its GPUs]], and check the NVLinks before a run gets it.",
        for_seconds=config.confirm_seconds,
    )


def _fabric_degraded(config: RuleConfig) -> Fault:
    window = duration(config.absence_window_seconds)
    return Fault(
        alert=Alert.NVLINK_DOWN,
        part=GPU,
        reason="fabric",
        summary=_NVLINK_BROKEN,
        happened=f"{THE_GPU} is not a sound part of the NVLink fabric: its probe failed, or its health "
        "mask reports a fault.",
        page=f"""
            {newest("rankwatch_gpu_fabric_degraded", window)} == 1
            or
            {newest('rankwatch_gpu_fabric_state{state="failed"}', window)} == 1
            unless on ({_GPU})
            rankwatch_gpu_fabric_state{{state="completed"}}
        """,
        if_used="Its collectives fail or are slow. [[Check fabric manager and NVSwitches]]; restart the run "
        "on another node.",
        if_idle="[[Check fabric manager and NVSwitches]] before a run gets this node.",
        for_seconds=config.confirm_seconds,
    )


def _nvswitch_fatal(config: RuleConfig) -> Fault:
    event = duration(config.event_window_seconds)
    return Fault(
        alert=Alert.NVLINK_DOWN,
        part=NODE,
        reason="nvswitch",
        summary=_NVLINK_BROKEN,
        happened=f"An NVSwitch of node {{{{ $labels.node }}}} reported a fatal error (SXid) in the last "
        f"{event}.",
        page=f"""
            max by (cluster, node) (
              increase(rankwatch_kernel_log_events_total{{event="nvswitch_fatal"}}[{event}])
            ) > 0
        """,
        if_used="All GPUs of the node may be cut off from each other. [[Restart the run on another node]], "
        "and reset GPUs and NVSwitches together.",
        if_idle="[[Reset GPUs and NVSwitches of the node together]] before a run gets it.",
        for_seconds=config.confirm_seconds,
    )


def _fabric_manager_gone(config: RuleConfig) -> Fault:
    window = duration(config.absence_window_seconds)
    return Fault(
        alert=Alert.NVLINK_DOWN,
        part=NODE,
        reason="fabric_manager",
        summary=_NVLINK_BROKEN,
        happened="The fabric manager of node {{ $labels.node }} does not run, although the node has "
        "NVSwitches.",
        page=f"{newest(_FABRIC_MANAGER, window, 'cluster, node')} == 0",
        if_used="NVLinks that go down stay down, and no process can start on the GPUs. [[Start the fabric "
        "manager]]; its version must be that of the driver.",
        if_idle="No run can start here. [[Start the fabric manager]]; its version must be that of the driver."
        "",
        for_seconds=config.absence_for_seconds,
    )


def _nvlink_errors(config: RuleConfig) -> Fault:
    window = duration(config.event_window_seconds)

    def grown(kinds: str) -> str:
        of_kind = f'increase(rankwatch_gpu_nvlink_errors_total{{kind=~"{kinds}"}}[{window}])'
        return f"sum by ({_GPU}) (max by ({_GPU}, kind) ({of_kind}))"

    return Fault(
        alert=Alert.NVLINK_ERRORS,
        part=GPU,
        summary="The NVLinks of a GPU have more errors than sound links have.",
        happened=f'The NVLinks of {THE_GPU} had {{{{ $value | printf "%.0f" }}}} errors in the last '
        f"{window}.",
        ticket=f"""
            {grown(_FAILED_RECOVERY)} > 0
            or
            {grown("replay|crc")} > {config.nvlink_errors:g}
        """,
        if_idle="Data is sent again, which costs bandwidth, until a link fails: [[have the links of this GPU "
        "checked]] at the next maintenance.",
        for_seconds=config.confirm_seconds,
    )


def _rdma_link_down(config: RuleConfig) -> Fault:
    """Down, and known to be in use: a port without a cable has never carried data, on no node."""
    window, lookback = duration(config.absence_window_seconds), duration(config.absence_lookback_seconds)
    up = newest("rankwatch_rdma_port_up", window, _PORT)
    return Fault(
        alert=Alert.RDMA_LINK_DOWN,
        part=NETWORK,
        summary="An RDMA port that was in use is down.",
        happened=f"{_THE_PORT} is down.",
        page=f"""
            {up} == 0
            and on ({_PORT})
            (
              last_over_time(rankwatch_rdma_receive_bytes_total[{window}]) > 0
              or on ({_PORT})
              max_over_time(rankwatch_rdma_port_up[{lookback}]) == 1
              or on ({_PORT})
              {up}
              and on (cluster, device, port)
              avg by (cluster, device, port) ({up}) > 0.5
            )
        """,
        if_used="Its collectives fail or lose this rail. [[Check cable, transceiver and switch port]]; if it "
        "stays down, restart the run without this node.",
        if_idle="[[Check cable, transceiver and switch port]] before a run gets this node.",
        for_seconds=config.confirm_seconds,
    )


def _rdma_device_gone(config: RuleConfig) -> Fault:
    """An adapter that fell off the PCIe bus takes its series with it, while the agent goes on."""
    window, lookback = duration(config.absence_window_seconds), duration(config.absence_lookback_seconds)
    return Fault(
        alert=Alert.RDMA_LINK_DOWN,
        part=NETWORK,
        reason="gone",
        summary="An RDMA port that was in use is down.",
        happened=f"{_THE_PORT} is gone: the kernel does not list it any more.",
        page=f"""
            max by ({_PORT}) (max_over_time(rankwatch_rdma_port_up[{lookback}])) == 1
            unless on ({_PORT})
            last_over_time(rankwatch_rdma_port_up[{window}])
            and on (cluster, node)
            min_over_time(rankwatch_collector_state{{collector="rdma", state!="failed"}}[{window}])
        """,
        if_used="Its collectives fail or lose this rail. The adapter may have fallen off the bus: [[restart "
        "the run without this node, and power cycle it]].",
        if_idle="The adapter may have fallen off the bus: [[power cycle the node before a run gets it]].",
        for_seconds=config.confirm_seconds,
    )


def _rdma_link_flapping(config: RuleConfig) -> Fault:
    window = duration(config.link_flap_window_seconds)
    flaps = f"max by ({_PORT}) (increase(rankwatch_rdma_link_downed_total[{window}]))"
    return Fault(
        alert=Alert.RDMA_LINK_FLAPPING,
        part=NETWORK,
        summary="The link of an RDMA port went down and came back.",
        happened=f'{_THE_PORT} lost its link {{{{ $value | printf "%.0f" }}}} time(s) in the last {window}.',
        # increase() extrapolates: half a flap less than the limit is still the limit.
        page=f"{flaps} > {config.link_flaps - 0.5:g}",
        ticket=f"{flaps} > 0 <= {config.link_flaps - 0.5:g}",
        if_used="Each time its collectives wait for seconds, and one that waits too long ends the run. "
        "[[Take the node out at the next checkpoint]], and have cable and transceiver replaced.",
        if_idle="[[Have cable and transceiver cleaned or replaced]] before it fails for good.",
        for_seconds=config.confirm_seconds,
    )


def _rdma_errors(config: RuleConfig) -> Fault:
    window = duration(config.step_window_seconds)
    of_port = "rankwatch_rdma_errors_total{cluster=%q, node=%q, device=%q, port=%q}"
    counters = listed(
        f"topk(3, max by (counter) (rate({of_port}[{window}])) > 0)",
        ("cluster", "node", "device", "port"),
        '{{ $series.Labels.counter }} ({{ $series.Value | printf "%.2f" }} a second)',
        "none any more",
    )
    too_many = "\nor\n".join(
        f'rate(rankwatch_rdma_errors_total{{counter="{counter}"}}[{window}]) > {most:.3g}'
        for counter, most in MOST_RDMA_ERRORS.items()
    )
    broken = f'increase(rankwatch_rdma_errors_total{{counter=~"{_BROKEN}"}}[{window}]) > 0'
    return Fault(
        alert=Alert.RDMA_ERRORS,
        part=NETWORK,
        summary="An RDMA port has more errors than a sound one has.",
        happened=f"{_THE_PORT} has errors; the most frequent: {counters}.",
        ticket=f"max by ({_PORT}) (\n{indent(too_many, '  ')}\n  or\n  {broken}\n)",
        if_idle="What is lost is sent again, which makes collectives slow. [[Check cable and transceiver]], "
        "and on RoCE the flow control of the switch.",
        for_seconds=config.confirm_seconds,
    )


def _rdma_congestion(config: RuleConfig) -> tuple[Fault, ...]:
    """Tickets: marks are how congestion control works, but beyond a share the queues of switches are full.

    By device: mlx5 counts marks by port, others for the device as a whole.
    """
    window = duration(config.step_window_seconds)
    packets = f"sum by ({_NIC}) (increase(rankwatch_rdma_receive_packets_total[{window}]))"
    marked = f'increase(rankwatch_rdma_congestion_total{{counter=~"{_MARKED}"}}[{window}])'
    resent = f'rate(rankwatch_rdma_errors_total{{counter=~"{_RESENT}"}}[{window}])'
    summary = "The RDMA network of a node is congested."
    device = "RDMA device {{ $labels.device }} on node {{ $labels.node }}"
    return (
        Fault(
            alert=Alert.RDMA_CONGESTION,
            part=NETWORK,
            reason="marked",
            summary=summary,
            happened=f"Switches marked {{{{ $value | humanizePercentage }}}} of the packets to {device} in "
            f"the last {window}: their queues are full.",
            ticket=f"""
                sum by ({_NIC}) ({marked})
                / on ({_NIC})
                ({packets} > {config.rdma_least_packets:g})
                > {config.rdma_congestion_share:g}
            """,
            if_idle="Senders slow down, and so do collectives. [[On one node look who else sends to it]], on "
            "many look at the paths that they share.",
            for_seconds=config.confirm_seconds,
        ),
        Fault(
            alert=Alert.RDMA_CONGESTION,
            part=NETWORK,
            reason="resent",
            summary=summary,
            happened=f'{device} sends {{{{ $value | printf "%.1f" }}}} packets a '
            "second again, because no answer came in time or the receiver was not ready.",
            ticket=f"sum by ({_NIC}) ({resent}) > {config.rdma_resent_rate:g}",
            if_idle="Each of them makes a collective wait. [[Look for pause frames and discards on the "
            "way]], and for a receiver that is too slow.",
            for_seconds=config.confirm_seconds,
        ),
    )


def _nic_down(config: RuleConfig) -> Fault:
    return Fault(
        alert=Alert.NIC_DOWN,
        part=NETWORK,
        summary="A network interface that was in use is down.",
        happened=f"{_THE_NIC} is down.",
        page=NETWORK_DOWN,
        if_used="If its traffic went over it, the run stands still or will. [[Check cable and switch port]].",
        if_idle="[[Check cable and switch port]] before a run gets this node.",
        for_seconds=config.confirm_seconds,
    )


def _nic_errors(config: RuleConfig) -> tuple[Fault, ...]:
    rates, flaps = duration(config.step_window_seconds), duration(config.link_flap_window_seconds)
    summary = "A network interface has errors or loses its link."
    return (
        Fault(
            alert=Alert.NIC_ERRORS,
            part=NETWORK,
            reason="errors",
            summary=summary,
            happened=f'{_THE_NIC} has {{{{ $value | printf "%.1f" }}}} errors a second.',
            ticket=f"""
                max by ({_NIC}) (
                  rate(rankwatch_network_receive_errors_total[{rates}])
                  +
                  rate(rankwatch_network_transmit_errors_total[{rates}])
                ) > {config.network_error_rate:g}
            """,
            if_idle="Packets are lost and sent again. [[Check cable, transceiver and switch port]].",
            for_seconds=config.confirm_seconds,
        ),
        Fault(
            alert=Alert.NIC_ERRORS,
            part=NETWORK,
            reason="flapping",
            summary=summary,
            happened=f'{_THE_NIC} lost its link {{{{ $value | printf "%.0f" }}}} times in the last {flaps}.',
            ticket=f"""
                max by ({_NIC}) (
                  increase(rankwatch_network_link_flaps_total[{flaps}])
                ) > {config.link_flaps - 0.5:g}
            """,
            if_idle="[[Replace cable and transceiver]] before it fails for good.",
            for_seconds=config.confirm_seconds,
        ),
    )
