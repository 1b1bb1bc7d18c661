"""The host collector and its parsers."""

from __future__ import annotations

from collections.abc import Callable
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


def collector(procfs: Path) -> HostCollector:
    return HostCollector(procfs=procfs, schedule=Schedule(5, 5), ticks_per_second=100)


def test_old_kernel_has_fewer_modes() -> None:
    ticks = parse_stat("cpu 1 2 3 4\ncpu0 1 2 3 4\n").ticks
    assert (list(ticks.found), ticks.broken) == (["user", "nice", "system", "idle"], ())


def test_kernel_without_oom_kills() -> None:
    """Kernels before 4.13 do not count them."""
    assert parse_oom_kills("nr_free_pages 1\noom_kill_disable 9\n") is None


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


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((parse_pressure, f"some total={number}") for number in ("x", "-1", 2**64)),
        (parse_pressure, "full total=1"),
        (parse_oom_kills, "oom_kill x"),
        (parse_oom_kills, "oom_kill -1"),
    ],
)
def test_broken_files(parse: Callable[[str], object], text: str) -> None:
    """Empty, or without the figure."""
    with pytest.raises(ValueError):
        parse(text)


def test_unreadable_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once by name. A file that this kernel lacks is not logged."""
    (tmp_path / "stat").write_text("cpu  10 20 30 40\ncpu0 10 20 30 40\n")
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
