"""Errors, congestion and operations, by the names that drivers give their counters."""

from __future__ import annotations

import pytest

from rankwatch_agent.sources.rdma.counters import CONGESTION, ERRORS, OPERATIONS, class_of, is_counter


@pytest.mark.parametrize(
    "name",
    [
        *("symbol_error", "port_xmit_discards", "local_link_integrity_errors", "VL15_dropped"),
        *(
            "out_of_sequence",
            "packet_seq_err",
            "rnr_nak_retry_err",
            "vport_out_of_buffer",
            "roce_adp_retrans",
        ),
        *("to_retransmits", "seq_err_naks_rcvd", "rx_roce_discards", "oos_drop_count"),
        *("rx_drops", "rdma_read_wr_err", "unresponsive_remote_events", "retrans_timeout_events"),
        *("ip4InDiscards", "RetransSegs", "Nak Sequence Error"),
    ],
)
def test_errors_of_each_driver_are_known(name: str) -> None:
    """The InfiniBand specification, mlx5, bnxt_re, efa, irdma."""
    assert class_of(name) is ERRORS


@pytest.mark.parametrize(
    "name",
    [
        *(
            "np_cnp_sent",
            "np_ecn_marked_roce_packets",
            "rp_cnp_handled",
            "rp_cnp_ignored",
            "roce_slow_restart",
        ),
        *("cnpSent", "RxECNMrkd", "vport_roce_slow_restart_cnps"),
    ],
)
def test_congestion_control_at_work_is_no_error(name: str) -> None:
    """A healthy fabric marks packets."""
    assert class_of(name) is CONGESTION


@pytest.mark.parametrize(
    "name",
    ["rx_write_requests", "InRdmaReads", "unicast_rcv_packets", "retrans_bytes", "resp_cqe_flush_error"],
)
def test_everything_else_is_an_operation(name: str) -> None:
    """Bytes among counts would drown them; a queue that is closed flushes what is left in it."""
    assert class_of(name) is OPERATIONS
    assert class_of("a_name_of_the_future") is OPERATIONS


def test_what_may_fall_is_no_counter() -> None:
    """The age of the values, and how many queues there are now."""
    assert not any(map(is_counter, ("lifespan", "active_qps", "watermark_mrs")))
    assert is_counter("out_of_buffer")
