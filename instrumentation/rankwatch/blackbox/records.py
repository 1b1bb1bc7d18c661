"""What a reader returns: header, now block and records, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rankwatch.conventions import Capability, Unseen
from rankwatch.identity import Identity


@dataclass(frozen=True, kw_only=True)
class Header:
    """The fixed part of a black box."""

    identity: Identity
    pid: int
    """Process id in the writer's PID namespace. Other namespaces may use another number."""
    started_monotonic: float
    started_wall: float
    """The same moment on the wall clock, in seconds."""
    target_steps: int | None
    run_class: str = ""
    """Class of the run in printable ASCII; empty where it declares none."""
    contact: str = ""
    """Channel or mail address of the run; empty where it declares none."""
    checkpoint_interval_seconds: float | None = None
    """Longest time between two checkpoints that the run intends."""
    capacity: int
    """Number of records in the ring."""
    deadline_wall: float | None = None
    """Unix time by which the run is to be done."""
    process_started_wall: float | None = None
    """Unix time at which the process started, before it imported anything; None in older boxes."""
    requeues: int = 0
    """How often the scheduler has started the job before."""
    restarts: int = 0
    """How often the launcher has started the ranks since."""
    nvrx_job: str = ""
    """Job by which NVRx's launcher reports its restart cycles; empty below other launchers."""
    traceparent: str = ""
    """Position in a trace of whoever started the rank; empty where there is none."""
    lag_seconds: float = 0.0
    """By how much the file may lag behind the process; 0 where the process has mapped it."""

    def wall(self, monotonic: float) -> float:
        """Convert a moment on the writer's monotonic clock to Unix time."""
        return monotonic - self.started_monotonic + self.started_wall


class GroupNow(NamedTuple):
    """A process group of the rank, from the now block."""

    number: int
    """Number of the name of the group, as in records of collectives."""
    name: str
    members: str
    """Its global ranks in short form (see `rankwatch.members`); empty if they are unknown."""
    size: int
    enqueued: int
    """Collectives enqueued so far, without sends and receives."""
    oldest: float
    """Start of the oldest operation that is not complete, monotonic; 0 if there is none or it is unknown. A
    collective starts when it is enqueued, a send or receive when a thread begins to wait for it."""
    operation: str
    """Name of the operation enqueued last."""


class AllocatorNow(NamedTuple):
    """What torch's allocator of GPU memory held when the rank last looked."""

    allocated: int
    """Bytes that tensors held."""
    reserved: int
    """Bytes that the allocator held of the GPU."""
    peak: int
    """Most bytes that tensors had held."""
    retries: int
    """Times that it gave back all cached memory and tried again."""
    out_of_memory: int
    """Times that even this did not suffice."""


@dataclass(frozen=True, kw_only=True)
class NowBlock:
    """What the rank was doing when the block was read. After its end this is the final state."""

    step: int
    step_began: float
    """Start of the open step on the monotonic clock; 0 if none is open."""
    step_ended: float
    steps_completed: int
    errors: int
    """Errors inside rankwatch that were kept from training."""
    loss: float
    checkpoint_step: int
    checkpoint_ended: float
    phases_began: Mapping[int, float]
    """Number of a phase's name -> when it last began. Phases that never began are left out."""
    gpu: str
    """UUID of the rank's GPU; empty while it is unknown."""
    allocator: AllocatorNow | None = None
    """None where the rank uses no GPU, or has not looked yet."""
    ended_by: str = ""
    """Lifecycle event that ended the run; empty until then."""
    target_steps: int = 0
    """Steps that the run is to reach, where it has learned them after its start; else 0."""
    device_marks_dropped: int = 0
    """Events on the GPU's compute stream that were dropped."""
    names_refused: int = 0
    """Times that a name found the table of names full, so that its record has no name."""
    capabilities: Mapping[Capability, Unseen | None] = field(default_factory=dict)
    """Capability -> why it is not visible; None where it is visible. Those that are unknown are left out."""
    cpu_wait_share: float | None = None
    """Part of its time in which the training thread was ready to run and had no CPU; None: not measured."""
    groups: tuple[GroupNow, ...] = ()
    """Process groups in which an operation was enqueued, in the order of their first operations."""


class RawRecord(NamedTuple):
    """One record of the ring. The payload is not decoded (see `layout`)."""

    kind: int
    name: int
    start: float
    end: float
    payload: bytes
