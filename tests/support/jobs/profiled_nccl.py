"""A DDP job on GPUs under PyTorch's profiler, with the arguments `DIRECTORY SLOW_RANK LAYERS WIDTH`.

The slow rank multiplies its matrices once more in each layer. Ranks that share a GPU have it for some
milliseconds in turn, so a step takes long against that; and little is reduced, as it goes over sockets.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

_ROWS, _STEPS = 1 << 15, 10


class Layer(torch.nn.Module):
    def __init__(self, width: int, repeats: int) -> None:
        super().__init__()
        self._linear = torch.nn.Linear(width, width)
        self._repeats = repeats

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for _ in range(self._repeats):
            values = torch.relu(self._linear(values))
        return values


def main(directory: str, slow_rank: int, layers: int, width: int) -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("nccl")
    repeats = 3 if rank == slow_rank else 2
    model = DistributedDataParallel(
        torch.nn.Sequential(*(Layer(width, repeats) for _ in range(layers))).cuda()
    )
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=3, active=_STEPS - 4, repeat=1),
        on_trace_ready=tensorboard_trace_handler(directory, use_gzip=True),
        record_shapes=True,
        with_stack=True,
    ) as profiler:
        for _ in range(_STEPS):
            model(torch.randn(_ROWS, width, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
