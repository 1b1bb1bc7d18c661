"""Recognises which process the kernel killed for lack of memory, by the lines of one kill:

oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),...,task_memcg=/kubepods/pod1,task=python,pid=77,uid=0
Memory cgroup out of memory: Killed process 77 (python) total-vm:22kB, anon-rss:5kB, file-rss:6kB, ...
"""

from __future__ import annotations

import re

from rankwatch.untrusted.text import printable
from rankwatch_agent.runtime.node_events import NodeEvents, OomKill
from rankwatch_agent.sources.kernel_log.reader import KernelRecord

MOST_CHARACTERS = 240
"""Of a line that is kept."""
_MOST_CGROUP_CHARACTERS = 4096
_VICTIM = re.compile(r"^oom-kill:.{0,9000}?,task_memcg=([^,]{1,4096}),task=.{0,40}?,pid=(\d{1,9}),")
_KILLED = re.compile(r"^(?:Memory cgroup out|Out) of memory: Killed process (\d{1,9}) \((.{0,64}?)\)")


class OomKillReader:
    """Turns records of the kernel log into kills. Not thread-safe."""

    def __init__(self, events: NodeEvents) -> None:
        self._events = events
        self._victim = (0, "")
        """The process whose kill was announced last, and its cgroup."""

    def take(self, record: KernelRecord) -> None:
        """Take one record, whatever it is about."""
        text = record.text
        if "oom-kill:" in text and (victim := _VICTIM.match(text)):
            self._victim = int(victim[2]), victim[1][:_MOST_CGROUP_CHARACTERS]
        elif "Killed process" in text and (killed := _KILLED.match(text)):
            pid = int(killed[1])
            cgroup = self._victim[1] if self._victim[0] == pid else ""
            line = printable(text[:MOST_CHARACTERS])
            self._events.add_kill(OomKill(pid, printable(killed[2]), record.seconds, cgroup, line))
