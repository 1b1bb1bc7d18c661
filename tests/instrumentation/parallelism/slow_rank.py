"""Tensor parallel steps in which one rank is late several times in a phase."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import trainings
from torch.distributed.device_mesh import init_device_mesh

from rankwatch.blackbox.reader import Reader

RANKS = 4
SLOW = 1
STEPS = 3
BLOCKS = 2
SLEEP_SECONDS = 0.04


def sleep_until_last(boxes: Sequence[Reader]) -> Any:
    """Return a hook that the slow rank runs before an all-reduce.

    It waits until all other ranks have entered the all-reduce and then sleeps. So the rank is last, however
    the machine schedules its processes.
    """

    def entered(box: Reader) -> dict[str, int]:
        return {each.name: each.enqueued for each in box.now().groups if each.size == RANKS}

    def waits(box: Reader, mine: dict[str, int]) -> bool:
        return any(count > mine.get(group, count) for group, count in entered(box).items())

    def sleep(*_: Any) -> None:
        mine = entered(boxes[SLOW])
        deadline = time.monotonic() + 60.0
        while not all(waits(each, mine) for each in boxes if each is not boxes[SLOW]):
            if time.monotonic() > deadline:
                raise TimeoutError("the other ranks did not enter the all-reduce")
            time.sleep(0.001)
        time.sleep(SLEEP_SECONDS)

    return sleep


def train(run: Any, rank: int, directory: Path) -> dict[str, Any]:
    """Run some steps with their phases. The slow rank sleeps before each all-reduce of the forward pass, of
    which a block has two. `directory`: of the job's black boxes."""
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tensor",))
    module = trainings.split_linears(trainings.model(BLOCKS), mesh)
    trainings.train(module)  # warm up, for work that is done only once
    if rank == SLOW:
        late = sleep_until_last([Reader(directory / f"{each}.blackbox") for each in range(RANKS)])
        for block in module.blocks:
            block.attention_out.register_forward_pre_hook(late)
            block.feed_forward[1].register_forward_pre_hook(late)
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
