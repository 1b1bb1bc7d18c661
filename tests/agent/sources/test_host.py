"""The host collector and its parsers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.host import (
    HostCollector,
    parse_meminfo,
    parse_oom_kills,
    parse_pressure,
    parse_stat,
)
from support.agent.process import values

STAT = (
    "cpu  10 20 30 40 50 60 70 80 5 5\n"
    "cpu0 5 10 15 20 25 30 35 40 5 5\n"
    "cpu1 5 10 15 20 25 30 35 40 0 0\n"
    "intr 1\n"
)


def collector(procfs: Path) -> HostCollector:
    return HostCollector(procfs=procfs, schedule=Schedule(5, 5), ticks_per_second=100)


def test_parse_stat() -> None:
    """Guest time is already part of user time."""
    times = parse_stat(STAT)
    assert times.cpus == 2
    assert list(times.ticks.found.items()) == [
        ("user", 10),
        ("nice", 20),
        ("system", 30),
        ("idle", 40),
        ("iowait", 50),
        ("irq", 60),
        ("softirq", 70),
        ("steal", 80),
    ]


def test_old_kernel_has_fewer_modes() -> None:
    ticks = parse_stat("cpu 1 2 3 4\ncpu0 1 2 3 4\n").ticks
    assert (list(ticks.found), ticks.broken) == (["user", "nice", "system", "idle"], ())


def test_parse_meminfo() -> None:
    """The kernel's kB has 1024 bytes."""
    text = "MemTotal:       2 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\nHugePages_Total: 0\n"
    assert parse_meminfo(text) == ({"MemTotal": 2048, "MemAvailable": 1024}, ())


def test_parse_oom_kills() -> None:
    """Kernels before 4.13 do not count them."""
    assert parse_oom_kills("oom_kill 3\noom_kill_disable 9\n") == 3
    assert parse_oom_kills("nr_free_pages 1\n") is None


def test_parse_pressure() -> None:
    """The `full` line is not added."""
    text = "some avg10=0.06 avg60=0.25 avg300=0.12 total=7413199\nfull avg10=0 avg60=0 avg300=0 total=5\n"
    assert parse_pressure(text) == pytest.approx(7.413199)


@pytest.mark.parametrize("line", ["", "intr 1\n", "cpu\n", "cpu 1 2 3\n"])
def test_stat_without_the_line_of_all_cpus(line: str) -> None:
    """The CPUs are still counted by their own lines."""
    assert parse_stat(f"{line}cpu0 1 2 3 4\ncpuX 1 2 3 4\n") == (({}, ("no line of all CPUs",)), 1)


def test_broken_cpu_mode() -> None:
    """The other modes stay."""
    ticks = parse_stat("cpu  10 x -3 40\n").ticks
    assert ticks == ({"user": 10, "idle": 40}, ("nice", "system"))


@pytest.mark.parametrize("line", ["", "MemTotal: x kB", "MemTotal: 1 MB", "MemTotal:", "MemTotal: -1 kB"])
def test_broken_line_of_meminfo(line: str) -> None:
    """Also another unit, and a missing total, which every kernel has."""
    assert parse_meminfo(f"{line}\nMemAvailable: 1 kB\n") == ({"MemAvailable": 1024}, ("MemTotal",))


def test_broken_files() -> None:
    """Empty, or without the figure."""
    odd_pressures = ((parse_pressure, f"some total={text}") for text in ("x", "-1", str(2**64)))
    others = (
        (parse_pressure, "full total=1"),
        (parse_oom_kills, "oom_kill x"),
        (parse_oom_kills, "oom_kill -1"),
    )
    for parse, text in (*odd_pressures, *others):
        with pytest.raises(ValueError):
            parse(text)


def test_unreadable_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once by name. A file that this kernel lacks is not logged."""
    (tmp_path / "stat").write_text(STAT)
    (tmp_path / "vmstat").mkdir()
    (tmp_path / "meminfo").write_bytes(b"\xff\x00garbage")
    host = collector(tmp_path)
    for _ in range(2):
        found = values([host.collect()])
    assert found["rankwatch_host_cpu_seconds_total", "idle"] == 0.4
    assert {name for name, *_ in found} == {"rankwatch_host_cpu_seconds_total", "rankwatch_host_cpus"}
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 2
    assert f"could not parse {tmp_path / 'meminfo'}: " in logged[0]
    assert f"could not read {tmp_path / 'vmstat'}: Is a directory" in logged[1]


def test_all_files_broken_or_missing(tmp_path: Path) -> None:
    """Broken is a failure, missing is not applicable."""
    with pytest.raises(NotApplicable):
        collector(tmp_path).collect()
    (tmp_path / "stat").write_text("garbage")
    with pytest.raises(CollectError, match=r"could not parse .*/stat: no line of all CPUs"):
        collector(tmp_path).collect()
