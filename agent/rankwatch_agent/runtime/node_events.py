"""What the node knows of the end of processes: kills for lack of memory, and notices of preemption.

Collectors of sources add them, and whoever judges how a run ended reads them, on other threads.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_EVENTS = 256
"""Of each kind; the newest are kept."""


class OomKill(NamedTuple):
    """A process that the kernel killed for lack of memory."""

    pid: int
    """In the PID namespace of the host."""
    name: str
    """Of its main thread, at most 15 characters."""
    moment: float
    """Seconds since boot on the log's own clock, which is close to the monotonic one."""
    cgroup: str
    """The process's; empty where the log does not name it."""
    line: str
    """Of the kernel log: printable and bounded."""


class PreemptionNotice(NamedTuple):
    """The scheduler or the cloud says that this node, or a job on it, has to stop."""

    source: str
    """Such as `aws` or `slurm`."""
    wall: float
    """Unix time at which it was seen first."""
    text: str
    """What it says: printable and bounded."""


class NodeEvents:
    """The newest of both kinds. Each is replaced as a whole, so that any thread may read them."""

    def __init__(self) -> None:
        self.oom_kills: tuple[OomKill, ...] = ()
        self.notices: tuple[PreemptionNotice, ...] = ()

    def add_kill(self, kill: OomKill) -> None:
        """Keep a kill. Only the collector of the kernel log calls this."""
        self.oom_kills = (*self.oom_kills, kill)[-MOST_EVENTS:]

    def add_notice(self, notice: PreemptionNotice) -> None:
        """Keep a notice. Only the collector of notices calls this."""
        self.notices = (*self.notices, notice)[-MOST_EVENTS:]
