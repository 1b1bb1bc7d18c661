"""Learning rate over the run: linear warm-up, then a cosine down to the final value."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from rankwatch_trainer.config import TrainerConfig


def learning_rate(config: TrainerConfig, completed_steps: int) -> float:
    """Learning rate of the step that follows `completed_steps`."""
    if completed_steps < config.warmup_steps:
        return config.learning_rate * (completed_steps + 1) / config.warmup_steps
    decay_steps = max(1, config.steps - 1 - config.warmup_steps)
    progress = min(1.0, (completed_steps - config.warmup_steps) / decay_steps)
    above_final = config.learning_rate - config.final_learning_rate
    return config.final_learning_rate + above_final * 0.5 * (1 + math.cos(math.pi * progress))


def warmup_then_cosine(optimizer: Optimizer, config: TrainerConfig) -> LambdaLR:
    """The schedule as PyTorch's scheduler, so that a checkpoint holds it like any other."""
    return LambdaLR(optimizer, lambda completed: learning_rate(config, completed) / config.learning_rate)
