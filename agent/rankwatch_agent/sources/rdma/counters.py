"""Reads the counters of an RDMA port, and maps each to its metric by the kernel's name of the counter.

Sources: the kernel's `drivers/infiniband` (core/sysfs.c, hw/mlx5/counters.c, hw/bnxt_re/hw_counters.c,
hw/efa/efa_verbs.c, hw/irdma/verbs.c) and NVIDIA's "Understanding mlx5 Linux counters".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from types import MappingProxyType
from typing import NamedTuple

from rankwatch.conventions.metrics import Metric, metric
from rankwatch_agent.runtime.collector import Series
from rankwatch_agent.sources.kernel_files import names_or_empty
from rankwatch_agent.sources.rdma.sysfs import SysfsFiles, parse_counter

ERRORS = metric("rankwatch_rdma_errors_total")
CONGESTION = metric("rankwatch_rdma_congestion_total")
OPERATIONS = metric("rankwatch_rdma_operations_total")

MAX_COUNTERS = 256
"""Most counters read from one directory. Today's drivers have about 80."""
MAX_OPERATIONS = 128
"""Most counters of one port exported as operations, the only class that accepts unknown names."""


class Total(NamedTuple):
    """The metric of a counter that has one of its own, and the bytes or events per count."""

    metric: Metric
    factor: int = 1


TOTALS = MappingProxyType(
    {
        # The InfiniBand specification counts data in words of four bytes.
        "port_rcv_data": Total(metric("rankwatch_rdma_receive_bytes_total"), 4),
        "port_xmit_data": Total(metric("rankwatch_rdma_transmit_bytes_total"), 4),
        "port_rcv_packets": Total(metric("rankwatch_rdma_receive_packets_total")),
        "port_xmit_packets": Total(metric("rankwatch_rdma_transmit_packets_total")),
        "port_xmit_wait": Total(metric("rankwatch_rdma_transmit_wait_ticks_total")),
        "link_downed": Total(metric("rankwatch_rdma_link_downed_total")),
    }
)
SUBSTITUTES = MappingProxyType(
    {
        "rx_bytes": "port_rcv_data",
        "tx_bytes": "port_xmit_data",
        "rx_pkts": "port_rcv_packets",
        "tx_pkts": "port_xmit_packets",
    }
)
"""Counters of EFA and older bnxt_re, in bytes. They are used only where the standard counter is absent."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ERRORS = _names(
    """
    symbol_error link_error_recovery local_link_integrity_errors excessive_buffer_overrun_errors
    port_rcv_errors port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_rcv_constraint_errors
    port_xmit_constraint_errors port_xmit_discards port_rcv_discards VL15_dropped

    out_of_sequence packet_seq_err local_ack_timeout_err rnr_nak_retry_err implied_nak_seq_err
    duplicate_request out_of_buffer rx_icrc_encapsulated req_cqe_error resp_cqe_error
    resp_local_length_error req_remote_invalid_request req_remote_access_errors resp_remote_access_errors
    req_transport_retries_exceeded req_rnr_retries_exceeded roce_adp_retrans roce_adp_retrans_to

    recoverable_errors tx_roce_errors tx_roce_discards rx_roce_errors rx_roce_discards rx_roce_drops
    to_retransmits seq_err_naks_rcvd max_retry_exceeded rnr_naks_rcvd missing_resp missin_resp
    unrecoverable_err bad_resp_err local_qp_op_err local_protection_err mem_mgmt_op_err
    remote_invalid_req_err remote_access_err remote_op_err dup_req oos_drop_count rx_out_of_buffer
    res_exceed_max res_length_mismatch res_exceeds_wqe res_opcode_err res_rx_invalid_rkey res_rx_domain_err
    res_rx_no_perm res_rx_range_err res_tx_invalid_rkey res_tx_domain_err res_tx_no_perm res_tx_range_err
    res_irrq_oflow res_unsup_opcode res_unaligned_atomic res_rem_inv_err res_mem_err res_srq_err res_cmp_err
    res_invalid_dup_rkey res_wqe_format_err res_cq_load_err res_srq_load_err res_tx_pci_err res_rx_pci_err

    rx_drops rdma_read_wr_err rdma_write_wr_err retrans_pkts retrans_timeout_events
    unresponsive_remote_events impaired_remote_conn_events no_completion_cmds cmds_err alloc_pd_err
    create_qp_err create_cq_err reg_mr_err alloc_ucontext_err create_ah_err mmap_err

    ip4InDiscards ip4InTruncatedPkts ip4OutNoRoutes ip6InDiscards ip6InTruncatedPkts ip6OutNoRoutes
    rxVlanErrors RetransSegs InOptErrors InProtoErrors
    """
) | {  # names of irdma generation 3 hold spaces
    "RNR sent",
    "RNR received",
    "Nak Sequence Error",
    "Nak Sequence Error Implied",
    "RTO",
    "Rcvd Out of order packets",
    "CRC errors",
}
_CONGESTION = _names(
    """
    np_cnp_sent np_ecn_marked_roce_packets rp_cnp_handled rp_cnp_ignored
    roce_slow_restart roce_slow_restart_cnps roce_slow_restart_trans
    cc_rx_ce_pkts cc_rx_cnp_pkts cc_tx_cnp_pkts
    rx_cnp_pkts tx_cnp_pkts rx_ecn_marked_pkts
    cnpHandled cnpIgnored cnpSent RxECNMrkd
    """
)
_GAUGES = ("active_", "watermark_")
"""bnxt_re lists gauges, such as the number of queue pairs, among its counters."""
_NOT_COUNTERS = frozenset({"lifespan"})
"""lifespan: milliseconds for which the driver repeats the values it read last."""
_VPORT_PREFIX = "vport_"
"""mlx5 prefixes the counters of a virtual port with it in switchdev mode."""


def is_counter(name: str) -> bool:
    """True if the file in a counter directory holds a number that only grows."""
    return name not in _NOT_COUNTERS and not name.startswith(_GAUGES)


def class_of(name: str) -> Metric:
    """Returns the metric for errors, for congestion, or for operations, which includes unknown names.

    `req_cqe_flush_error` and `resp_cqe_flush_error` are operations: closing a queue regularly counts them
    too.
    """
    bare = name.removeprefix(_VPORT_PREFIX)
    if bare in _ERRORS:
        return ERRORS
    return CONGESTION if bare in _CONGESTION else OPERATIONS


def read_counters(files: SysfsFiles, directory: str) -> dict[str, int]:
    """Returns the readable counters of a directory by name."""
    found = {}
    for name in names_or_empty(directory)[:MAX_COUNTERS]:
        if is_counter(name):
            value = files.value(f"{directory}/{name}", parse_counter)
            if value is not None:
                found[name] = value
    return found


def counter_series(
    device: str, port: str, counters: Mapping[str, int], standard: Set[str] = frozenset()
) -> Iterator[Series]:
    """Yields each counter in its metric, none twice.

    `standard` holds the standard counters that this port has had before. No substitute is used for them, so
    that a total does not jump while one of them cannot be read.
    """
    present = standard | counters.keys()
    operations = 0
    for name, value in counters.items():
        total = _total(name, present)
        if total is not None:
            yield Series(total.metric, (device, port), value * total.factor)
            continue
        each = class_of(name)
        if each is OPERATIONS:
            operations += 1
            if operations > MAX_OPERATIONS:
                continue
        yield Series(each, (device, port, name), value)


def _total(name: str, present: Set[str]) -> Total | None:
    replaced = SUBSTITUTES.get(name)
    if replaced is not None:
        return Total(TOTALS[replaced].metric) if replaced not in present else None
    return TOTALS.get(name)
