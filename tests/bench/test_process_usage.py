"""Reading the usage of a process from /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.process_usage import cpu_seconds, footprint, resident_bytes
from bench.result import BenchError


def test_command_name_with_parentheses(tmp_path: Path) -> None:
    """The fields of CPU time follow the command name, which may contain anything."""
    (tmp_path / "7").mkdir()
    behind = ["S", *("0" for _ in range(10)), "150", "50", *("0" for _ in range(30))]
    (tmp_path / "7" / "stat").write_text(f"7 (a) b) (c) {' '.join(behind)}\n")
    assert cpu_seconds(7, tmp_path) == 200 / os.sysconf("SC_CLK_TCK")


def test_resident_memory(tmp_path: Path) -> None:
    """The kernel counts in KiB; now and at the peak."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tx\nGroups:\t\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n")
    assert resident_bytes(7, tmp_path) == (1 << 20, 2 << 20)


def test_missing_process(tmp_path: Path) -> None:
    """The error names the file that could not be read."""
    with pytest.raises(BenchError, match="could not read"):
        cpu_seconds(7, tmp_path)


def add_process(procfs: Path, pid: int, children: str = "") -> None:
    """A process with one thread and one open file."""
    process = procfs / str(pid)
    (process / "task" / str(pid)).mkdir(parents=True)
    (process / "task" / str(pid) / "children").write_text(children)
    (process / "fd").mkdir()
    (process / "fd" / "0").touch()
    (process / "stat").write_text(f"{pid} (x) {' '.join('1' for _ in range(40))}\n")
    (process / "status").write_text("VmHWM:\t 9 kB\nVmRSS:\t 4 kB\nThreads:\t3\n")
    (process / "smaps_rollup").write_text("0-1 rollup\nRss: 4 kB\nPss:  2 kB\nPss_Dirty: 1 kB\n")


def test_footprint(tmp_path: Path) -> None:
    """A worker's memory is its parent's cost; shared pages count once in one of the two figures."""
    add_process(tmp_path, 7, "8 ")
    add_process(tmp_path, 8)
    assert footprint(7, tmp_path) == (4 / os.sysconf("SC_CLK_TCK"), 8192, 4096, 6, 2, 2)


def test_child_ends(tmp_path: Path) -> None:
    """A thread or child that ends while it is read does not fail the benchmark, in whatever state it is."""
    add_process(tmp_path, 7, "8 9 10 ")
    (tmp_path / "7" / "task" / "70").mkdir()  # a thread whose `children` is gone
    add_process(tmp_path, 9)
    (tmp_path / "9" / "status").write_text("State:\tZ (zombie)\nThreads:\t1\n")  # holds no memory
    add_process(tmp_path, 10)
    (tmp_path / "10" / "smaps_rollup").unlink()
    assert footprint(7, tmp_path) == (2 / os.sysconf("SC_CLK_TCK"), 4096, 2048, 3, 1, 1)


def test_exporter_ends(tmp_path: Path) -> None:
    """The process under watch must live: its figures are the benchmark."""
    with pytest.raises(BenchError, match="could not read"):
        footprint(7, tmp_path)
