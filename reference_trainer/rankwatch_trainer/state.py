"""Everything that changes while a run trains, and that a checkpoint must bring back."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from rankwatch_trainer.config import TrainerConfig
from rankwatch_trainer.data import ShardedBatches
from rankwatch_trainer.errors import CheckpointError
from rankwatch_trainer.faults import Conditions
from rankwatch_trainer.model import paced_model
from rankwatch_trainer.world import World


@dataclass(kw_only=True)
class TrainingState:
    """Model, optimizer, schedule and data of one rank after `step` steps."""

    model: DistributedDataParallel
    optimizer: AdamW
    schedule: LambdaLR
    batches: ShardedBatches
    device: torch.device
    step: int = 0

    def gather(self, world: World) -> dict[str, Any] | None:
        """Return the content of a checkpoint, on rank 0; None on others. A collective: all ranks call it."""
        own = {"random": _random_state(self.device), "position": self.batches.position}
        ranks: list[Any] | None = [None] * world.size if world.rank == 0 else None
        dist.gather_object(own, ranks)
        if ranks is None:
            return None
        return {
            "step": self.step,
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "ranks": ranks,
        }

    def restore(self, saved: dict[str, Any], world: World) -> None:
        """Go back to what `gather` gave. Raises CheckpointError where it does not fit this run."""
        if len(saved["ranks"]) != world.size:
            raise CheckpointError(
                f"could not resume: the checkpoint is of {len(saved['ranks'])} ranks, this run {world.size}"
            )
        try:
            self.model.module.load_state_dict(saved["model"])
        except RuntimeError as cause:
            raise CheckpointError("could not resume: the checkpoint is of a model of other shape") from cause
        self.optimizer.load_state_dict(saved["optimizer"])
        self.schedule.load_state_dict(saved["schedule"])
        self.batches.position = saved["ranks"][world.rank]["position"]
        _restore_random_state(saved["ranks"][world.rank]["random"], self.device)
        self.step = saved["step"]


def fresh_state(
    config: TrainerConfig, world: World, device: torch.device, text: Tensor, conditions: Conditions
) -> TrainingState:
    """Return the state before the first step: the same weights on each rank, each rank's share of the
    text."""
    torch.manual_seed(config.seed)
    random.seed(config.seed)
    model = paced_model(config, conditions).to(device)
    replica = DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )
    optimizer = AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    batches = ShardedBatches(
        text,
        shape=(config.accumulation, config.batch_size),
        context=config.context,
        rank=world.rank,
        world_size=world.size,
        seed=config.seed,
    )
    _settle_gradient_buckets(replica, torch.zeros(1, config.context + 1, dtype=torch.int64, device=device))
    return TrainingState(
        model=replica,
        optimizer=optimizer,
        schedule=warmup_then_cosine(optimizer, config),
        batches=batches,
        device=device,
    )


def learning_rate(config: TrainerConfig, completed_steps: int) -> float:
    """Return the learning rate of the step that follows `completed_steps`."""
    if completed_steps < config.warmup_steps:
        return config.learning_rate * (completed_steps + 1) / config.warmup_steps
    decay_steps = max(1, config.steps - 1 - config.warmup_steps)
    progress = min(1.0, (completed_steps - config.warmup_steps) / decay_steps)
    above_final = config.learning_rate - config.final_learning_rate
    return config.final_learning_rate + above_final * 0.5 * (1 + math.cos(math.pi * progress))


def warmup_then_cosine(optimizer: Optimizer, config: TrainerConfig) -> LambdaLR:
    """Return the schedule as PyTorch's scheduler, so that a checkpoint holds it like any other."""
    return LambdaLR(optimizer, lambda completed: learning_rate(config, completed) / config.learning_rate)


def _settle_gradient_buckets(model: DistributedDataParallel, text: Tensor) -> None:
    """Run one backward ahead of training, whose gradients are thrown away.

    DDP orders its gradient buckets anew after the first backward, and the order decides how the ranks'
    gradients are added up. Settled before the first step, it is the same in a resumed run, which then
    repeats the uninterrupted one bit for bit.
    """
    model(text).backward()
    model.zero_grad()


def _random_state(device: torch.device) -> dict[str, Any]:
    gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"python": random.getstate(), "cpu": torch.get_rng_state(), "gpu": gpu}


def _restore_random_state(saved: dict[str, Any], device: torch.device) -> None:
    random.setstate(saved["python"])
    torch.set_rng_state(saved["cpu"])
    if saved["gpu"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(saved["gpu"], device)
