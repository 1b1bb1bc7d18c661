"""Counters of a port as series, and reading and parsing its files. Failing files are read seldom."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_agent.sources.kernel_files import OutOfDescriptorsError
from rankwatch_agent.sources.rdma_counters import (
    CONGESTION,
    ERRORS,
    MAX_FAILURES,
    RETRY_SECONDS,
    SysfsFiles,
    class_of,
    counter_series,
    is_exported,
    parse_counter,
    parse_physical_state,
    parse_rate,
    parse_state,
    parse_word,
    read_counters,
)
from support.agent.process import ManualClock
from support.processes.exhaustion import no_descriptors
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


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (ERRORS, "symbol_error port_xmit_discards local_link_integrity_errors VL15_dropped"),
        (ERRORS, "out_of_sequence packet_seq_err rnr_nak_retry_err vport_out_of_buffer roce_adp_retrans"),
        (ERRORS, "to_retransmits seq_err_naks_rcvd rx_roce_discards oos_drop_count"),
        (ERRORS, "rx_drops rdma_read_wr_err unresponsive_remote_events retrans_timeout_events"),
        (ERRORS, "ip4InDiscards RetransSegs"),
        (
            CONGESTION,
            "np_cnp_sent np_ecn_marked_roce_packets rp_cnp_handled rp_cnp_ignored roce_slow_restart",
        ),
        (CONGESTION, "cnpSent RxECNMrkd vport_roce_slow_restart_cnps"),
        (None, "rx_write_requests InRdmaReads unicast_rcv_packets retrans_bytes resp_cqe_flush_error"),
    ],
    ids=["InfiniBand", "mlx5", "bnxt_re", "efa", "irdma", "of mlx5", "of others", "neither"],
)
def test_classes(kind: object, names: str) -> None:
    """A healthy fabric marks packets. Bytes would drown counts. Closing a queue flushes what is in it."""
    assert {name: class_of(name) for name in names.split()} == dict.fromkeys(names.split(), kind)
    assert kind is not None or not any(map(is_exported, names.split()))


def test_name_with_spaces() -> None:
    """As irdma has it."""
    assert class_of("Nak Sequence Error") is ERRORS


def test_gauges_are_not_exported() -> None:
    """The age of the values, and the present number of queues."""
    assert not any(map(is_exported, ("lifespan", "active_qps", "watermark_mrs")))
    assert is_exported("out_of_buffer")


class Parser:
    """Counts how often a file was really read."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self, text: bytes) -> int | None:
        self.reads += 1
        return parse_counter(text)


def test_failing_file_is_skipped(tmp_path: Path) -> None:
    """Each refused query may write a line to the kernel's log."""
    clock = ManualClock()
    reader, parse, path = SysfsFiles(clock), Parser(), tmp_path / "symbol_error"
    path.write_text("N/A (no PMA)\n")
    for _ in range(10):
        assert reader.value(str(path), parse) is None
    assert parse.reads == MAX_FAILURES
    clock.now += RETRY_SECONDS
    for _ in range(10):
        assert reader.value(str(path), parse) is None
    assert parse.reads == MAX_FAILURES + 1
    path.write_text("7\n")
    clock.now += RETRY_SECONDS
    for _ in range(10):
        assert reader.value(str(path), parse) == 7
    assert parse.reads == MAX_FAILURES + 11


def test_occasional_failures(tmp_path: Path) -> None:
    """A success in between resets the count."""
    reader, parse, path = SysfsFiles(ManualClock()), Parser(), tmp_path / "symbol_error"
    for text in ("N/A\n", "N/A\n", "1\n") * 3:
        path.write_text(text)
        reader.value(str(path), parse)
    assert parse.reads == 9


def test_forget_failures(tmp_path: Path) -> None:
    """A port that came up may answer now."""
    reader, parse, path = SysfsFiles(ManualClock()), Parser(), tmp_path / "symbol_error"
    path.write_text("N/A (no PMA)\n")
    for _ in range(MAX_FAILURES + 1):
        reader.value(str(path), parse)
    path.write_text("3\n")
    assert reader.value(str(path), parse) is None
    reader.forget_failures()
    assert reader.value(str(path), parse) == 3


def test_reported_errors(tmp_path: Path) -> None:
    """Missing firmware support is not reported; garbage and a broken file system are, once each."""
    reader = SysfsFiles(ManualClock())
    (tmp_path / "refused").write_text("N/A (no PMA)\n")
    (tmp_path / "garbage").write_text("garbage\n")
    (tmp_path / "directory").mkdir()
    for name in ("refused", "garbage", "directory", "missing") * 2:
        assert reader.value(str(tmp_path / name), parse_counter) is None
    assert [str(error).partition(":")[0] for error in reader.take_errors()] == [
        f"could not use {tmp_path / name}" for name in ("garbage", "directory")
    ]
    assert reader.take_errors() == []


def test_refused_read_is_not_reported() -> None:
    """EINVAL, here from a real kernel file."""
    reader = SysfsFiles(ManualClock())
    assert reader.value("/proc/self/attr/current/x", parse_counter) is None
    assert reader.value("/sys/class/net/lo/speed", parse_counter) is None
    assert reader.take_errors() == []


def test_endless_file() -> None:
    """Only its first page is read."""
    sizes: list[int] = []

    def measure(text: bytes) -> int:
        sizes.append(len(text))
        return 0

    SysfsFiles(ManualClock()).value("/dev/zero", measure)
    assert sizes == [4096]


def test_out_of_descriptors(tmp_path: Path) -> None:
    """Many scrapes at once must not cost counters for ten minutes."""
    reader, path = SysfsFiles(ManualClock()), tmp_path / "symbol_error"
    path.write_text("7\n")
    with no_descriptors():
        for _ in range(2 * MAX_FAILURES):
            with pytest.raises(OutOfDescriptorsError, match="Too many open files"):
                reader.value(str(path), parse_counter)
    assert reader.value(str(path), parse_counter) == 7


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        (b"400 Gb/sec (4X NDR)\n", 50e9),
        (b"2.5 Gb/sec (1X SDR)\n", 312.5e6),
        (b"100 Gb/sec\n", 12.5e9),
        (b"0 Gb/sec\n", None),
    ],
)
def test_parse_rate(text: bytes, bytes_per_second: float | None) -> None:
    """Width and generation follow the number. A speed of 0 means unknown."""
    assert parse_rate(text) == bytes_per_second


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"400", b"400 Mb/sec", b"fast Gb/sec", b"nan Gb/sec", b"-1 Gb/sec", b"inf Gb/sec"]
)
def test_invalid_rates(text: bytes) -> None:
    """Another unit must not be taken for gigabits."""
    with pytest.raises(ValueError):
        parse_rate(text)


def test_parse_states() -> None:
    """By number, since the text differs between kernels. Unknown numbers give None."""
    states = [parse_state(b"%d: X\n" % number) for number in range(7)]
    assert states == ["nop", "down", "init", "armed", "active", "active_defer", None]
    assert parse_physical_state(b"5: LinkUp\n") == "link_up"
    assert parse_physical_state(b"2: Polling\n") == "polling"
    assert parse_physical_state(b"8: <unknown>\n") is None
    with pytest.raises(ValueError):
        parse_state(b"ACTIVE\n")


def test_unknown_counters() -> None:
    """Firmware without the counter, and all bits set."""
    assert parse_counter(b"18446744073709551614\n") == 2**64 - 2
    assert [parse_counter(text) for text in (b"N/A (no PMA)\n", b"18446744073709551615\n")] == [None, None]


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"-1\n", b"1e3\n", b"0x10\n", b"18446744073709551616\n", b"\xff"]
)
def test_invalid_counters(text: bytes) -> None:
    """Also numbers of more than 64 bits."""
    with pytest.raises(ValueError):
        parse_counter(text)


def test_parse_word() -> None:
    """Bytes that are not UTF-8 are replaced."""
    assert parse_word(b" MT4129 \n") == "MT4129"
    assert parse_word(b"\xff\n") == "\ufffd"
    assert parse_word(b"\n") is None
