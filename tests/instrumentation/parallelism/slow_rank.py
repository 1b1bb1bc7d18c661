"""Tensor parallel steps in which one rank takes longer, again and again within one phase."""

from __future__ import annotations

import time
from typing import Any

import torch
import trainings
from torch.distributed.device_mesh import init_device_mesh

SLOW = 1
STEPS = 3
BLOCKS = 2
SLEEP_SECONDS = 0.04


def sleep(*_: Any) -> None:
    time.sleep(SLEEP_SECONDS)


def train(run: Any, rank: int) -> dict[str, Any]:
    """Some steps, with their phases; the slow rank sleeps before it enters an all-reduce of the forward pass,
    of which there are two in each block."""
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tensor",))
    module = trainings.split_linears(trainings.model(BLOCKS), mesh)
    trainings.train(module)  # what is done once is done
    if rank == SLOW:
        for block in module.blocks:
            block.attention_out.register_forward_pre_hook(sleep)
            block.feed_forward[1].register_forward_pre_hook(sleep)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(STEPS):
        with run.step():
            with run.phase("forward"):
                loss = module(trainings.text())
            with run.phase("backward"):
                loss.backward()
            with run.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
    slept = STEPS * BLOCKS * 2 * SLEEP_SECONDS
    return {"steps": STEPS, "slow": SLOW, "slept": slept}
