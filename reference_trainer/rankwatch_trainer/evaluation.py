"""Loss on text that is never trained on."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankwatch_trainer.batches import ShardedBatches
from rankwatch_trainer.config import TrainerConfig
from rankwatch_trainer.world import World


class Evaluation:
    """Mean loss of all ranks, each over the same few batches of its share of the held-out text."""

    def __init__(self, config: TrainerConfig, world: World, device: torch.device, held_out: Tensor) -> None:
        self._every = config.eval_every
        self._world_size = world.size
        self._batches: Tensor | None = None
        if self._every > 0:
            share = ShardedBatches(
                held_out,
                shape=(config.eval_batches, config.batch_size),
                context=config.context,
                rank=world.rank,
                world_size=world.size,
                seed=config.seed,
            )
            self._batches = next(share).to(device)

    def due(self, step: int) -> bool:
        """Whether an evaluation follows this step."""
        return self._every > 0 and step % self._every == 0

    @torch.no_grad()
    def loss(self, model: nn.Module) -> Tensor:
        """Mean loss in nats per byte; a collective, so every rank calls it."""
        assert self._batches is not None, "asked for an evaluation that is never due"
        total = torch.stack([model(text) for text in self._batches]).mean()
        dist.all_reduce(total)
        return total / self._world_size
