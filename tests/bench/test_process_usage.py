"""Reading the usage of a process from /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.process_usage import cpu_seconds, footprint, resident_bytes


def test_cpu_time_is_read_behind_a_command_name_with_parentheses(tmp_path: Path) -> None:
    """User and system time, whatever the program calls itself."""
    (tmp_path / "7").mkdir()
    behind = ["S", *("0" for _ in range(10)), "150", "50", *("0" for _ in range(30))]
    (tmp_path / "7" / "stat").write_text(f"7 (a) b) (c) {' '.join(behind)}\n")
    assert cpu_seconds(7, tmp_path) == 200 / os.sysconf("SC_CLK_TCK")


def test_memory_is_read_now_and_at_its_peak(tmp_path: Path) -> None:
    """The kernel counts in KiB."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tx\nGroups:\t\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n")
    assert resident_bytes(7, tmp_path) == (1 << 20, 2 << 20)


def test_a_process_that_is_gone_is_a_broken_benchmark(tmp_path: Path) -> None:
    """One sentence says which file could not be read."""
    with pytest.raises(BenchError, match="could not read"):
        cpu_seconds(7, tmp_path)


def test_a_footprint_adds_the_children(tmp_path: Path) -> None:
    """A worker's memory is its parent's cost; shared pages count once in one of the two figures."""
    for pid, children in ((7, "8 "), (8, "")):
        process = tmp_path / str(pid)
        (process / "task" / str(pid)).mkdir(parents=True)
        (process / "task" / str(pid) / "children").write_text(children)
        (process / "fd").mkdir()
        (process / "fd" / "0").touch()
        (process / "stat").write_text(f"{pid} (x) {' '.join('1' for _ in range(40))}\n")
        (process / "status").write_text("VmHWM:\t 9 kB\nVmRSS:\t 4 kB\nThreads:\t3\n")
        (process / "smaps_rollup").write_text("0-1 rollup\nRss: 4 kB\nPss:  2 kB\nPss_Dirty: 1 kB\n")
    found = footprint(7, tmp_path)
    assert found == (4 / os.sysconf("SC_CLK_TCK"), 8192, 4096, 6, 2, 2)
