"""The distributed job this process is part of: its rank, its device, its process group, and when it is to
stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from rankwatch_trainer.config import Device
from rankwatch_trainer.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class World:
    """Place of this process in the job."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    launched: bool = False
    """True under torchrun, which provides the rendezvous; False for a process on its own."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> World:
        """Read RANK, WORLD_SIZE and LOCAL_RANK, which torchrun sets; without them rank 0 of 1."""
        if "RANK" not in environment:
            return cls()
        try:
            rank, size = int(environment["RANK"]), int(environment.get("WORLD_SIZE", "1"))
            local_rank = int(environment.get("LOCAL_RANK", rank))
        except ValueError as cause:
            raise UsageError(f"could not read RANK, WORLD_SIZE and LOCAL_RANK: {cause}") from cause
        return cls(rank=rank, size=size, local_rank=local_rank, launched="MASTER_ADDR" in environment)

    def device(self, device: Device) -> torch.device:
        """Return where this rank's tensors live. Raises UsageError if there is no such GPU."""
        if device != "cuda":
            return torch.device("cpu")
        if self.local_rank >= torch.cuda.device_count():
            raise UsageError(f"device is cuda, but local rank {self.local_rank} has no GPU on this machine")
        return torch.device("cuda", self.local_rank)


@contextmanager
def process_group(world: World, device: torch.device, timeout_seconds: float) -> Iterator[None]:
    """Join the job's process group, gloo or NCCL, and leave it when the body ends normally.

    `timeout_seconds` limits collectives, not the start. After an exception the group stays until the process
    ends: peers may be gone, and NCCL would wait for them.
    """
    store = rendezvous(world.rank, world.size) if world.launched else dist.HashStore()  # type: ignore[attr-defined]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=timeout_seconds),
    )
    yield
    dist.destroy_process_group()


def rendezvous(rank: int, size: int) -> Any:
    """Wait until all ranks are here, and return the store of the job (torch exports no type for it).

    Ranks wait for each other for half an hour, torch's default. `init_process_group` would wait no longer
    than a collective may take, but ranks may start further apart.
    """
    # DistributedDataParallel imports this between two collectives. On a busy machine one rank needs seconds
    # more for it than another, and that belongs to the start.
    import torch._dynamo  # noqa: F401 - imported for later

    store, _, _ = next(dist.rendezvous("env://", rank=rank, world_size=size))  # type: ignore[attr-defined]
    start = dist.PrefixStore("start", store)  # type: ignore[attr-defined]
    if start.add("arrived", 1) == size:
        start.set("complete", "")
    start.wait(["complete"])
    return dist.PrefixStore("default_pg", store)  # type: ignore[attr-defined]


class Preemption:
    """Knows whether any rank was asked to stop."""

    def __init__(self, *, watching: bool) -> None:
        self._watching = watching
        self.signalled = False
        """Set by the signal on this rank; the others learn of it in `agreed`."""

    def agreed(self, device: torch.device) -> bool:
        """Return True on all ranks once any rank was asked. A collective, unless nothing is watched."""
        if not self._watching:
            return False
        asked = torch.tensor(int(self.signalled), device=device)
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        return bool(asked.item())


@contextmanager
def watch_for_preemption(wanted: bool) -> Iterator[Preemption]:
    """Catch SIGTERM within the block, if `wanted`. Main thread only."""
    preemption = Preemption(watching=wanted)

    def remember(_signal: int, _frame: FrameType | None) -> None:
        preemption.signalled = True

    if not wanted:
        yield preemption
        return
    before = signal.signal(signal.SIGTERM, remember)
    try:
        yield preemption
    finally:
        signal.signal(signal.SIGTERM, before)
