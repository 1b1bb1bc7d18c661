"""The kernel log collector, and whom the kernel killed for lack of memory."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.runtime.node_events import MOST_EVENTS, NodeEvents
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from rankwatch_agent.sources.kernel_log import (
    MAX_SXID_COUNTS,
    MOST_CHARACTERS,
    KernelLogCollector,
    OomKillReader,
    parse_boot_time,
)
from rankwatch_agent.sources.kernel_log_lines import KernelRecord
from rankwatch_agent.sources.xid import XidCount, XidCounter, load_table
from support.agent.process import values

BOOTED = 1_700_000_000
BUS = "0000:3b:00.0"
UUID = "GPU-8f1c6e0a-0000-1111-2222-333344445555"
FELL = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
FELL_TOO = "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."
OUT_OF_MEMORY = "Out of memory: Killed process 1234 (python) total-vm:1kB"


class Node:
    """A log, a /proc, an inventory and a counter of XID errors."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "kmsg"
        self.inventory = GpuInventory()
        self.xids = XidCounter(load_table(None))
        (root / "stat").write_text(f"cpu 1 2 3\nbtime {BOOTED}\n")
        self.log.touch()
        self.written = 0

    def collector(self, max_lines: int = 1000) -> KernelLogCollector:
        return KernelLogCollector(
            path=self.log,
            procfs=self.root,
            inventory=self.inventory,
            xids=self.xids,
            schedule=Schedule(5, 5),
            max_lines=max_lines,
        )

    def write(self, *texts: str) -> None:
        """One record each, ten seconds apart."""
        with self.log.open("a") as file:
            for text in texts:
                self.written += 1
                file.write(f"4,{self.written},{self.written * 10_000_000},-;{text}\n")


def counts(node: Node, metric: str) -> dict[tuple[str, ...], float]:
    """The series of a metric by their labels."""
    found = values([node.collector().collect()])
    return {key[1:]: count for key, count in found.items() if key[0] == metric}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_lines_before_and_after_the_start(node: Node) -> None:
    """An agent that restarts keeps the counts since boot."""
    node.write(OUT_OF_MEMORY, "nothing of note")
    kernel_log = node.collector()
    event = ("rankwatch_kernel_log_events_total", "oom_kill")
    assert values([kernel_log.collect()])[event] == 1
    node.write(OUT_OF_MEMORY)
    assert values([kernel_log.collect()])[event] == 2
    assert values([node.collector().collect()])[event] == 2


def test_two_lines_about_one_lost_gpu(node: Node) -> None:
    """They are one error, with its time, under the UUID where the inventory knows it."""
    node.inventory.publish([GpuIdentity(UUID, BUS, 0, 0, "H100")], ())
    node.write(FELL, FELL_TOO)
    node.collector().collect()
    assert node.xids.counts() == [XidCount(UUID, 79, 1, BOOTED + 10)]


def test_xid_error_of_an_unknown_gpu(node: Node) -> None:
    """It is counted by PCI address until a line of the driver, or the inventory, gives the UUID."""
    node.write(FELL)
    kernel_log = node.collector()
    for gpu in (BUS, UUID):
        kernel_log.collect()
        assert node.xids.counts() == [XidCount(gpu, 79, 1, BOOTED + 10)]
        node.write(f"NVRM: GPU at PCI:0000:3b:00: {UUID}")


def test_severity_comes_from_the_log(node: Node) -> None:
    """Fatal and Nonfatal occurrences of one code differ."""
    for word in ("Nonfatal", "Nonfatal", "Fatal"):
        node.write(f"NVRM: Xid (PCI:0000:3b:00): 145, RLW_RXPIPE {word} XC0 i0 Link 13 (0x0409a0c2)")
    node.collector().collect()
    assert node.xids.severities() == {(BUS, "warning"): 2, (BUS, "critical"): 1}


def test_raw_line_is_logged_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """It holds more than any series. A flood must not fill the agent's log."""
    node.write(*[FELL.replace("1234", str(pid)) for pid in range(100)])
    with caplog.at_level(logging.INFO):
        node.collector().collect()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "pid=0, name=python" in record.getMessage()
    assert "2023-11-14T22:13:30+00:00" in record.getMessage()
    assert node.xids.counts()[0].errors == 100


def test_unknown_boot_time(node: Node) -> None:
    """Only the timestamps are missing."""
    (node.root / "stat").write_text("cpu 1 2 3\n")
    node.write(FELL)
    node.collector().collect()
    assert node.xids.counts() == [XidCount(BUS, 79, 1, None)]
    with pytest.raises(ValueError):
        parse_boot_time("cpu 1 2 3\n")
    with pytest.raises(ValueError):
        parse_boot_time(f"btime {'9' * 400}\n")


def test_no_series_until_caught_up(node: Node) -> None:
    """Reading the history must not look like new events."""
    node.write(*[OUT_OF_MEMORY] * 5000)
    kernel_log = node.collector(max_lines=100)
    collections = [kernel_log.collect()]
    while not collections[-1].series:
        collections.append(kernel_log.collect())
    assert len(collections) > 1
    assert values(collections)["rankwatch_kernel_log_events_total", "oom_kill"] == 5000


def test_no_log(node: Node) -> None:
    """Most containers have none."""
    node.log.unlink()
    with pytest.raises(NotApplicable):
        node.collector().collect()


def test_nvlink5_errors(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 149, {} Fatal XC0 i0 Link 01 (0x{:08x} 0x00000000)"
    node.write(*[line.format("NETIR_LINK_EVT", detail << 20) for detail in (33, 33, 38)])
    node.write(line.format("NETIR_NEW", 0), line.format("NETIR_NEWER", 0))
    assert counts(node, "rankwatch_gpu_xid_subcode_errors_total") == {
        (BUS, "149", "NETIR_LINK_EVT", "reset_gpu"): 2,
        (BUS, "149", "NETIR_LINK_EVT", "none"): 1,
        (BUS, "149", "other", "check_nvlink"): 2,
    }
    assert "action reset_gpu, look at the device at the other end of the link;" in caplog.text


def test_nvswitch_errors(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Each error counts once, though the driver logs three lines for it."""
    start = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006,"
    node.write(
        f"{start} Non-fatal, Link 46 MC TS crumbstore MCTO (First)",
        f"{start} Severity 0 Engine instance 46 Sub-engine instance 00",
        f"{start} Data {{0x00140004, 0x00100000, 0x00000000}}",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 31 LTSSM Fault Up",
    )
    assert counts(node, "rankwatch_nvswitch_sxid_errors_total") == {
        ("0000:c1:00.0", "28006", "nonfatal"): 1,
        ("0000:05:00.0", "20034", "fatal"): 2,
    }
    assert [each.levelname for each in caplog.records] == ["WARNING", "ERROR"]


def test_number_of_nvswitch_counts(node: Node) -> None:
    """A broken driver, or somebody who writes to the log, cannot make endless series."""
    for code in range(MAX_SXID_COUNTS + 20):
        node.write(f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {code}, Fatal, Link 30")
    found = counts(node, "rankwatch_nvswitch_sxid_errors_total")
    assert len(found) == MAX_SXID_COUNTS + 1
    assert found["other", "other", "fatal"] == 20


VICTIM = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods/pod1,"
    "task_memcg=/kubepods/pod1/c,task=python3,pid=20489,uid=0"
)
KILLED = (
    "Memory cgroup out of memory: Killed process 20489 (python3) total-vm:221384kB, anon-rss:58368kB, "
    "file-rss:6616kB, shmem-rss:0kB, UID:0 pgtables:176kB oom_score_adj:0"
)


def read(*texts: str) -> NodeEvents:
    events = NodeEvents()
    reader = OomKillReader(events)
    for number, text in enumerate(texts):
        reader.take(KernelRecord(number, 100.0 + number, text))
    return events


def test_kill_in_a_cgroup() -> None:
    """The kill names process, cgroup and moment, and keeps its line."""
    (kill,) = read("something else", VICTIM, KILLED).oom_kills
    assert kill[:4] == (20489, "python3", 102.0, "/kubepods/pod1/c")
    assert kill.line == KILLED[:MOST_CHARACTERS]


def test_kill_of_the_whole_node() -> None:
    """A kill without an announcement, or after that of another process, has no cgroup."""
    text = "Out of memory: Killed process 7 (pt_main_thread) total-vm:1kB"
    (kill,) = read(VICTIM, text).oom_kills
    assert kill[:4] == (7, "pt_main_thread", 101.0, "")


def test_hostile_lines() -> None:
    """A name of a process is anybody's choice: it forges no other kill, and no line breaks the terminal."""
    assert read("oom_reaper: reaped process 1 (Killed process 5 (x)), now anon-rss:0kB").oom_kills == ()
    assert read("Out of memory: Killed process 99999999999 (a)").oom_kills == ()
    (kill,) = read("Out of memory: Killed process 5 (\x1b[31m) total-vm:1kB").oom_kills
    assert "\x1b" not in kill.line + kill.name


def test_bounded() -> None:
    """The newest kills are kept."""
    kills = read(*(f"Out of memory: Killed process {n} (a) t" for n in range(MOST_EVENTS + 5))).oom_kills
    assert (len(kills), kills[-1].pid) == (MOST_EVENTS, MOST_EVENTS + 4)
