"""What the node knows of the starts and ends of processes: kills for lack of memory, notices of preemption,
and the restart cycles of jobs, as their launcher reports them.

Collectors of sources add them, and whoever follows the attempts of runs reads them, on other threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
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
    """Text of the notice: printable and bounded."""


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


_NONE: Mapping[str, tuple[RestartCycle, ...]] = MappingProxyType({})


class RestartCycle(NamedTuple):
    """One start of the ranks of a job by its launcher."""

    attempt: int
    """How often the scheduler has started the job before."""
    number: int
    """How often the launcher has started the ranks since."""
    started: float
    """Unix time."""
    ended: float | None
    """Unix time; None while it runs, or if its launcher died."""
    active_nodes: int | None
    """Nodes with ranks; None where the launcher does not say."""
    standby_nodes: int
    """Nodes that wait to take the place of another one."""
    owner: int
    """User id of the file that says so."""


class RestartCycles:
    """The newest cycles of the jobs of this node. Each mapping is replaced as a whole."""

    def __init__(self) -> None:
        self.wanted: frozenset[tuple[str, int]] = frozenset()
        """Jobs of the ranks of this node, with the ids of their users. Only the collector `ranks` sets it."""
        self.found: Mapping[str, tuple[RestartCycle, ...]] = _NONE
        """Job -> its cycles, in their order. Only the collector `nvrx` sets it."""

    def at(self, job: str, owner: int, moment: float) -> RestartCycle | None:
        """Return the cycle in which a process of this user began at `moment` (Unix time); None if unknown."""
        begun = [each for each in self._of(job, owner) if each.started <= moment]
        return begun[-1] if begun else None

    def newest(self, job: str, owner: int) -> RestartCycle | None:
        """Return the last cycle of a job of this user; None if none is known."""
        cycles = self._of(job, owner)
        return cycles[-1] if cycles else None

    def _of(self, job: str, owner: int) -> Sequence[RestartCycle]:
        return [each for each in self.found.get(job, ()) if each.owner == owner]
