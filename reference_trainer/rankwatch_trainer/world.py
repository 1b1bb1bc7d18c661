"""The distributed job this process is part of: its rank, its device, its process group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from rankwatch_trainer.config import Device
from rankwatch_trainer.errors import UsageError
from rankwatch_trainer.meeting import meet


@dataclass(frozen=True, kw_only=True)
class World:
    """Place of this process in the job."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    launched: bool = False
    """True under torchrun, which says where the ranks meet; False for a process on its own."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> World:
        """What torchrun says in RANK, WORLD_SIZE and LOCAL_RANK; rank 0 of 1 where it says nothing."""
        if "RANK" not in environment:
            return cls()
        try:
            rank, size = int(environment["RANK"]), int(environment.get("WORLD_SIZE", "1"))
            local_rank = int(environment.get("LOCAL_RANK", rank))
        except ValueError as cause:
            raise UsageError(f"could not read RANK, WORLD_SIZE and LOCAL_RANK: {cause}") from cause
        return cls(rank=rank, size=size, local_rank=local_rank, launched="MASTER_ADDR" in environment)

    def device(self, device: Device) -> torch.device:
        """Where this rank's tensors live. Raises UsageError where there is no such GPU."""
        if device != "cuda":
            return torch.device("cpu")
        if self.local_rank >= torch.cuda.device_count():
            raise UsageError(f"device is cuda, but local rank {self.local_rank} has no GPU on this machine")
        return torch.device("cuda", self.local_rank)


@contextmanager
def process_group(world: World, device: torch.device, timeout_seconds: float) -> Iterator[None]:
    """Joins the job's process group, gloo or NCCL, and leaves it when the body ends in order.

    timeout_seconds is for collectives; ranks may start further apart than that.

    After an exception the group is left to the end of the process: peers may be gone, and NCCL would
    wait for them.
    """
    store = meet(world.rank, world.size) if world.launched else dist.HashStore()  # type: ignore[attr-defined]
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
