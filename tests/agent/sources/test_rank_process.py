"""What /proc shows of a process to any reader, from files as the kernel writes them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rankwatch_agent.sources.rank_process import ProcessFacts, read_facts, since

TICKS = os.sysconf("SC_CLK_TCK")


def thread(directory: Path, state: str, *, name: str = "python", channel: str = "0") -> None:
    """The files of a thread that began 100 s after boot and was scheduled 6 times."""
    directory.mkdir(parents=True, exist_ok=True)
    numbers = " ".join(["1"] * 18)
    (directory / "stat").write_text(f"7 ({name}) {state} {numbers} {100 * TICKS} 0 0\n")
    switches = "voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t1\n"
    (directory / "status").write_text(f"State:\t{state}\n{switches}")
    (directory / "wchan").write_text(channel)


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    """Process 7 of two threads, 100 s old: the main one sleeps, and waited 25 s for a CPU."""
    (tmp_path / "uptime").write_text("200.00 300.00\n")
    thread(tmp_path / "7", "S", channel="futex_wait_queue")
    thread(tmp_path / "7" / "task" / "7", "S")
    thread(tmp_path / "7" / "task" / "8", "S")
    (tmp_path / "7" / "schedstat").write_text("1000 25000000000 12\n")
    return tmp_path


def facts(procfs: Path) -> ProcessFacts:
    """Of process 7, which has some."""
    found = read_facts(procfs, 7)
    assert found is not None
    return found


def test_sleeping_process(procfs: Path) -> None:
    """The state, where it sleeps, and how long it had no CPU."""
    expected = ProcessFacts(pid=7, state="S", wait_channel="futex_wait_queue", cpu_wait_share=0.25)
    assert facts(procfs) == expected


def test_blocked_thread(procfs: Path) -> None:
    """A thread in state D is what counts, with its own wait channel, wherever the main thread is."""
    thread(procfs / "7" / "task" / "8", "D", channel="nfs_wait")
    found = facts(procfs)
    assert (found.state, found.wait_channel, found.blocked) == ("D", "nfs_wait", {8: 6})


def test_blocked_for_a_moment(procfs: Path) -> None:
    """A disk is waited for again and again: only a thread that has not run since is blocked."""
    thread(procfs / "7" / "task" / "8", "D")
    before = facts(procfs)
    assert since(before, before).state == "D"
    ran = replace(before, blocked={8: 7})
    assert since(before, ran).state == "S"
    assert since(before, replace(before, state="R", blocked={})).state == "R"
    assert since(before, None).state == ""
    assert since(before, replace(before, pid=9)).state == "", "another process has the box by now"


def test_impossible_count(procfs: Path) -> None:
    """A number that the kernel cannot have written counts for nothing."""
    thread(procfs / "7" / "task" / "8", "D")
    status = procfs / "7" / "task" / "8" / "status"
    status.write_text(f"voluntary_ctxt_switches:\t{'9' * 5000}\nnonvoluntary_ctxt_switches:\t1\n")
    (procfs / "7" / "schedstat").write_text(f"1 {'9' * 400} 1\n")
    found = facts(procfs)
    assert (found.blocked, found.cpu_wait_share) == ({8: 1}, None)


@pytest.mark.parametrize("state", ["T", "t", "Z"])
def test_stopped_process(procfs: Path, state: str) -> None:
    """The main thread tells it. A zombie has no files of threads."""
    thread(procfs / "7", state, channel="do_signal_stop")
    found = facts(procfs)
    assert (found.state, found.stopped, found.blocked) == (state, state in "Tt", {})


def test_name_of_a_process(tmp_path: Path) -> None:
    """It may hold anything, and is no field."""
    thread(tmp_path / "7", "T", name="a) R 1 (b")
    found = facts(tmp_path)
    assert (found.state, found.wait_channel, found.cpu_wait_share) == ("T", "", None)


@pytest.mark.parametrize("stat", ["", "7 (python", "7 (python) S 1 2"])
def test_unreadable_process(tmp_path: Path, stat: str) -> None:
    """One that is gone, hidden or broken has no facts."""
    assert read_facts(tmp_path, 7) is None
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(stat)
    assert read_facts(tmp_path, 7) is None


def test_this_process() -> None:
    """The kernel's own files are understood."""
    found = read_facts(Path("/proc"), os.getpid())
    assert found is not None
    assert found.pid == os.getpid()
    assert found.state in "RSD"
