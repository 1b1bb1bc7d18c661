"""Counters of a port as series."""

from __future__ import annotations

from pathlib import Path

from rankwatch_agent.sources.rdma.counters import MAX_COUNTERS, MAX_OPERATIONS, counter_series, read_counters
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
