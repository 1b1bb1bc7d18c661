"""Which process the kernel killed for lack of memory, and in which cgroup."""

from __future__ import annotations

from rankwatch_agent.runtime.node_events import MOST_EVENTS, NodeEvents
from rankwatch_agent.sources.kernel_log import MOST_CHARACTERS, OomKillReader
from rankwatch_agent.sources.kernel_log_lines import KernelRecord

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
