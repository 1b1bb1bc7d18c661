"""Counters of a port as series."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_agent.sources.rdma.counters import (
    CONGESTION,
    ERRORS,
    MAX_COUNTERS,
    MAX_OPERATIONS,
    OPERATIONS,
    class_of,
    counter_series,
    is_counter,
    read_counters,
)
from rankwatch_agent.sources.rdma.sysfs import SysfsFiles
from support.sources.node_tree import write


def series_of(counters: dict[str, int]) -> list[tuple[str, tuple[str, ...], float]]:
    """(metric without its prefix, labels, value) of each."""
    return [
        (series.metric.name.removeprefix("rankwatch_rdma_"), series.labels, series.value)
        for series in counter_series("mlx5_0", "1", counters)
    ]


def test_bytes_that_are_counted_twice_are_exported_once() -> None:
    """bnxt_re has both the specification's counters and its own; the latter are mere operations then."""
    port = ("mlx5_0", "1")
    assert series_of({"rx_bytes": 101, "port_rcv_data": 25}) == [
        ("operations_total", (*port, "rx_bytes"), 101),
        ("receive_bytes_total", port, 100),
    ]
    assert series_of({"rx_bytes": 101}) == [("receive_bytes_total", port, 101)]


def test_the_number_of_unknown_counters_is_bounded() -> None:
    """A driver's thousand new names do not become a thousand series; the names known here stay."""
    unknown = {f"a_future_{index:05d}": index for index in range(MAX_OPERATIONS + 50)}
    found = series_of({**unknown, "symbol_error": 1})
    assert len(found) == MAX_OPERATIONS + 1
    assert found[-1] == ("errors_total", ("mlx5_0", "1", "symbol_error"), 1)


def test_no_more_files_are_read_than_a_driver_could_have(tmp_path: Path) -> None:
    """Each costs system calls."""
    write(tmp_path, {f"counter_{index:05d}": index for index in range(MAX_COUNTERS + 50)})
    assert len(read_counters(SysfsFiles(), str(tmp_path))) == MAX_COUNTERS


def test_a_directory_that_is_not_there_holds_no_counter(tmp_path: Path) -> None:
    """A port without the InfiniBand counters, such as EFA's."""
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
