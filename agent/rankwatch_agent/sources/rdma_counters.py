"""Reads the counters of an RDMA port, and maps each to its metric by the kernel's name of the counter.

Sources: the kernel's `drivers/infiniband` (core/sysfs.c, hw/mlx5/counters.c, hw/bnxt_re/hw_counters.c,
hw/efa/efa_verbs.c, hw/irdma/verbs.c) and NVIDIA's "Understanding mlx5 Linux counters".

A port has hundreds of files with one value, which are read with few system calls. When firmware refuses a
query, some drivers write a line to the kernel's log at every read (prometheus/node_exporter#3434). A file
that keeps failing is therefore skipped for a while.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Set
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from rankwatch.conventions.metrics import Metric, metric
from rankwatch_agent.runtime.collector import Series
from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.sources.kernel_files import (
    OUT_OF_DESCRIPTORS,
    OutOfDescriptorsError,
    names_or_empty,
    parse_count,
)

ERRORS = metric("rankwatch_rdma_errors_total")
CONGESTION = metric("rankwatch_rdma_congestion_total")


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
        "port_xmit_wait": Total(metric("rankwatch_rdma_transmit_wait_ticks_total")),
        "link_downed": Total(metric("rankwatch_rdma_link_downed_total")),
    }
)
SUBSTITUTES = MappingProxyType(
    {
        "rx_bytes": "port_rcv_data",
        "tx_bytes": "port_xmit_data",
        "rx_pkts": "port_rcv_packets",
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
_VPORT_PREFIX = "vport_"
"""mlx5 prefixes the counters of a virtual port with it in switchdev mode."""


def class_of(name: str) -> Metric | None:
    """Return the metric for errors or for congestion; None for a counter of neither, and for unknown names.

    `req_cqe_flush_error` and `resp_cqe_flush_error` are no errors: closing a queue regularly counts them too.
    """
    bare = name.removeprefix(_VPORT_PREFIX)
    if bare in _ERRORS:
        return ERRORS
    return CONGESTION if bare in _CONGESTION else None


def is_exported(name: str) -> bool:
    """Return True if a counter of this name can have a series. Drivers list gauges and settings among the
    others."""
    return name in TOTALS or name in SUBSTITUTES or class_of(name) is not None


def read_counters(files: SysfsFiles, directory: str) -> dict[str, int]:
    """Return the readable ones of a directory's counters that are exported, by name."""
    found = {}
    for name in names_or_empty(directory):
        if is_exported(name):
            value = files.value(f"{directory}/{name}", parse_counter)
            if value is not None:
                found[name] = value
    return found


def counter_series(
    device: str, port: str, counters: Mapping[str, int], standard: Set[str] = frozenset()
) -> Iterator[Series]:
    """Yield each counter in its metric, none twice.

    `standard` holds the standard counters that this port has had before. No substitute is used for them, so
    that a total does not jump while one of them cannot be read.
    """
    present = standard | counters.keys()
    for name, value in counters.items():
        total = _total(name, present)
        if total is not None:
            yield Series(total.metric, (device, port), value * total.factor)
        elif (each := class_of(name)) is not None:
            yield Series(each, (device, port, name), value)


def _total(name: str, present: Set[str]) -> Total | None:
    replaced = SUBSTITUTES.get(name)
    if replaced is not None:
        return Total(TOTALS[replaced].metric) if replaced not in present else None
    return TOTALS.get(name)


Parsed = TypeVar("Parsed")

MAX_FAILURES = 3
"""Failures in a row after which a file is skipped."""
RETRY_SECONDS = 600.0
"""Time for which a failing file is skipped by default."""
_MAX_BYTES = 4096  # sysfs never returns more than a page
_UNKNOWN_TO_DRIVER = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV, errno.ENODATA})
"""Errors by which a driver says that it does not know the value. All others are reported."""

STATES = MappingProxyType({0: "nop", 1: "down", 2: "init", 3: "armed", 4: "active", 5: "active_defer"})
"""`enum ib_port_state` of the kernel."""
PHYSICAL_STATES = MappingProxyType(
    {
        1: "sleep",
        2: "polling",
        3: "disabled",
        4: "training",
        5: "link_up",
        6: "link_error_recovery",
        7: "phy_test",
    }
)
"""`enum ib_port_phys_state` of the kernel."""

_UNKNOWN_COUNT = 2**64 - 1
"""All bits set: a counter that the driver does not know."""
_BYTES_PER_GIGABIT = 1_000_000_000 / 8


class _Failure(NamedTuple):
    in_a_row: int
    retry_at: float
    """On the monotonic clock."""


class SysfsFiles:
    """Reads the files of one port or device, and remembers which of them fail."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._failures: dict[str, _Failure] = {}
        self._errors: dict[str, CollectError] = {}

    def value(
        self, path: str, parse: Callable[[bytes], Parsed | None], retry_seconds: float = RETRY_SECONDS
    ) -> Parsed | None:
        """Return the parsed file, or None where it is absent, unreadable, skipped or without a value.

        `parse` returns None for an answer that means "unknown" and raises ValueError for one that it does not
        understand. Either counts as a failure of the file. OutOfDescriptorsError, which it raises, does not.
        """
        failure = self._failures.get(path) if self._failures else None
        if failure is not None and failure.in_a_row >= MAX_FAILURES and self._monotonic() < failure.retry_at:
            return None
        try:
            value = parse(read_bytes(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
                raise OutOfDescriptorsError(f"could not read {path}: {error.strerror}") from None
            self._report(path, error)
            value = None
        if value is None:
            in_a_row = failure.in_a_row + 1 if failure is not None else 1
            self._failures[path] = _Failure(in_a_row, self._monotonic() + retry_seconds)
        elif failure is not None:
            del self._failures[path]
        return value

    def forget_failures(self) -> None:
        """Read every file again from now on, as after a change of the port's state."""
        self._failures.clear()

    def take_errors(self) -> list[CollectError]:
        """Return one error per file that broke since the last call."""
        errors, self._errors = list(self._errors.values()), {}
        return errors

    def _report(self, path: str, error: OSError | ValueError) -> None:
        if isinstance(error, OSError) and error.errno in _UNKNOWN_TO_DRIVER:
            return
        reason = error.strerror if isinstance(error, OSError) else error
        self._errors[path] = CollectError(f"could not use {path}: {reason}")


def read_bytes(path: str) -> bytes:
    """Return the first 4096 bytes of the file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(descriptor, _MAX_BYTES)
    finally:
        os.close(descriptor)


def parse_counter(text: bytes) -> int | None:
    """Parse a counter; None for `N/A (no PMA)` and for all bits set."""
    if text.startswith(b"N/A"):
        return None
    value = parse_count(text.decode("ascii"))
    return value if value != _UNKNOWN_COUNT else None


def parse_state(text: bytes) -> str | None:
    """Parse `4: ACTIVE` as `active`; None for a state that is not in the kernel's list."""
    return STATES.get(_number(text))


def parse_physical_state(text: bytes) -> str | None:
    """Parse `5: LinkUp` as `link_up`; None for a state that is not in the kernel's list."""
    return PHYSICAL_STATES.get(_number(text))


def parse_rate(text: bytes) -> float | None:
    """Parse `400 Gb/sec (4X NDR)` as bytes per second; None where it is 0."""
    number, unit, *_ = (*text.split(), b"", b"")
    if unit != b"Gb/sec":
        raise ValueError(f"unexpected rate {text!r:.80}")
    gigabits = float(number)
    if not 0 <= gigabits < 1e9:
        raise ValueError(f"unexpected rate {text!r:.80}")
    return gigabits * _BYTES_PER_GIGABIT or None


def parse_word(text: bytes) -> str | None:
    """Parse a name or version, without the space around it; None where it is empty."""
    return text.decode("utf-8", "replace").strip() or None


def _number(text: bytes) -> int:
    return parse_count(text.partition(b":")[0].decode("ascii"))
