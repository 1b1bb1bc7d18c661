"""Counters of a port as series, and their metrics by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_agent.sources.rdma_counters import (
    CONGESTION,
    ERRORS,
    SysfsFiles,
    class_of,
    counter_series,
    is_exported,
    read_counters,
)
from support.sources.node_tree import write


def series_of(counters: dict[str, int]) -> list[tuple[str, tuple[str, ...], float]]:
    """(metric without its prefix, labels, value) of each."""
    return [
        (series.metric.name.removeprefix("rankwatch_rdma_"), series.labels, series.value)
        for series in counter_series("mlx5_0", "1", counters)
    ]


def test_bytes_are_exported_once() -> None:
    """bnxt_re has the standard counters and its own."""
    port = ("mlx5_0", "1")
    assert series_of({"rx_bytes": 101, "port_rcv_data": 25}) == [("receive_bytes_total", port, 100)]
    assert series_of({"rx_bytes": 101}) == [("receive_bytes_total", port, 101)]


def test_only_exported_counters_are_read(tmp_path: Path) -> None:
    """Each file costs system calls, and a thousand new names must not become a thousand series."""
    write(tmp_path, {"symbol_error": 1, **{f"a_future_{index:05d}": index for index in range(1000)}})
    assert read_counters(SysfsFiles(), str(tmp_path)) == {"symbol_error": 1}


def test_missing_counter_directory(tmp_path: Path) -> None:
    """EFA's ports lack the InfiniBand counters."""
    assert read_counters(SysfsFiles(), str(tmp_path / "counters")) == {}


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
def test_errors(name: str) -> None:
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
def test_congestion(name: str) -> None:
    """A healthy fabric marks packets."""
    assert class_of(name) is CONGESTION


@pytest.mark.parametrize(
    "name",
    ["rx_write_requests", "InRdmaReads", "unicast_rcv_packets", "retrans_bytes", "resp_cqe_flush_error"],
)
def test_other_counters(name: str) -> None:
    """Bytes would drown counts. Closing a queue flushes what is left in it."""
    assert class_of(name) is None
    assert not is_exported(name)


def test_gauges_are_not_exported() -> None:
    """The age of the values, and the present number of queues."""
    assert not any(map(is_exported, ("lifespan", "active_qps", "watermark_mrs")))
    assert is_exported("out_of_buffer")
