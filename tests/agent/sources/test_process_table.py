"""Processes that wait in the kernel, and the services of NVIDIA's driver."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.runtime.writers import RankProcess
from rankwatch_agent.sources.process_table import ProcessesCollector, parse_stat
from support.agent.process import values
from support.sources.node_tree import add_pci

KERNEL_THREAD = 0x00208040
USER = 0x400040
WAITING = ("rankwatch_host_processes_uninterruptible",)
SERVICE = "rankwatch_nvidia_service_running"


class Node:
    """A /proc, a /sys, and a collector of them."""

    def __init__(self, root: Path) -> None:
        self.procfs, self.sysfs = root / "proc", root / "sys"
        self.ranks: list[RankProcess] = []
        self.put(1, "systemd")
        self.collector = ProcessesCollector(
            procfs=self.procfs, sysfs=self.sysfs, ranks=lambda: self.ranks, schedule=Schedule(15, 10)
        )

    def put(self, pid: int, name: str, state: str = "S", flags: int = USER, *, thread: int = 0) -> None:
        directory = self.procfs / str(pid) / (f"task/{thread}" if thread else "")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "stat").write_text(f"{pid} ({name[:15]}) {state} 1 1 1 0 -1 {flags} 0 0 0 0 0\n")

    def end(self, pid: int) -> None:
        (self.procfs / str(pid) / "stat").unlink()

    def read(self) -> dict[tuple[str, ...], float]:
        return values([self.collector.collect()])


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_waiting_processes(node: Node) -> None:
    """Threads of the kernel may rest in state D; a name may hold anything."""
    node.put(2, "kworker/u8:3", "D", KERNEL_THREAD)
    node.put(30, "python) D (x", "R")
    node.put(31, "cp", "D")
    node.put(32, "train.py", "D")
    (node.procfs / "33").mkdir()  # it ends while the table is read
    held = sorted(Path("/proc/self/fd").iterdir())
    assert node.read()[WAITING] == 2
    assert sorted(Path("/proc/self/fd").iterdir()) == held, "each file is closed again"


def test_threads_of_a_rank(node: Node) -> None:
    """The thread that writes a checkpoint waits for the disk, and the main thread for that thread."""
    node.ranks = [RankProcess("gpt", 5, 40), RankProcess("gpt", 6, 41)]
    node.put(40, "python")
    for thread, state in ((40, "S"), (43, "D"), (44, "D")):
        node.put(40, "python", state, thread=thread)
    name = "rankwatch_rank_uninterruptible_threads"
    found = {key: value for key, value in node.read().items() if key[0] == name}
    assert found == {(name, "gpt", "5"): 2}  # rank 6 has ended meanwhile


def test_many_ranks_of_one_user(node: Node) -> None:
    """They do not push out the rank of another one."""
    hogs = (RankProcess(f"hog{each}", 0, 41, 1) for each in range(1000))
    node.ranks = [*hogs, RankProcess("gpt", 5, 40, 2)]
    node.put(40, "python")
    node.put(40, "python", "D", thread=40)
    assert node.read()["rankwatch_rank_uninterruptible_threads", "gpt", "5"] == 1


def test_services(node: Node) -> None:
    """One that never ran is not missed; one that is gone is. The kernel cuts names off."""
    assert SERVICE not in {key[0] for key in node.read()}
    node.put(50, "nv-fabricmanager")
    node.put(51, "nvidia-persistenced")
    running = (SERVICE, "fabric_manager"), (SERVICE, "persistenced")
    assert [node.read()[each] for each in running] == [1, 1]
    node.end(50)
    assert [node.read()[each] for each in running] == [0, 1]


def test_fabric_manager_of_nvswitches(node: Node) -> None:
    """Where NVSwitches are on the bus, it is missed even if it never ran."""
    add_pci(node.sysfs, "pci0000:c0/0000:c1:00.0", "0x068000", "0x10de")
    assert node.read()[SERVICE, "fabric_manager"] == 0


def test_hidden_processes(node: Node) -> None:
    """A /proc without processes is broken, not healthy."""
    node.end(1)
    with pytest.raises(CollectError, match="could not find any process"):
        node.read()


def test_real_processes() -> None:
    """This test runs, and is a process of the machine."""
    ranks = [RankProcess("r", 0, os.getpid())]
    collector = ProcessesCollector(
        procfs=Path("/proc"), sysfs=Path("/sys"), ranks=lambda: ranks, schedule=Schedule(15, 10)
    )
    found = values([collector.collect()])
    assert found[WAITING] >= 0
    assert ("rankwatch_rank_uninterruptible_threads", "r", "0") in found


@pytest.mark.parametrize("raw", [b"", b"1 (x) S", b"1 (x) S 1 1 1 0 -1 flags", b"\xff\xfe) \xff"])
def test_broken_stat(raw: bytes) -> None:
    assert parse_stat(raw) is None
