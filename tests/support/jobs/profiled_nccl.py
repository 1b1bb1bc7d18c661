"""A DDP job on GPUs under PyTorch's profiler, run by torchrun with the arguments `DIRECTORY SLOW_RANK`.

The slow rank multiplies its matrices once more in each layer.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

_WIDTH, _STEPS = 4096, 10


class Layer(torch.nn.Module):
    def __init__(self, repeats: int) -> None:
        super().__init__()
        self._linear = torch.nn.Linear(_WIDTH, _WIDTH)
        self._repeats = repeats

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for _ in range(self._repeats):
            values = torch.relu(self._linear(values))
        return values


def main(directory: str, slow_rank: int) -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    repeats = 3 if dist.get_rank() == slow_rank else 2
    model = DistributedDataParallel(torch.nn.Sequential(*(Layer(repeats) for _ in range(6))).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=3, active=_STEPS - 4, repeat=1),
        on_trace_ready=tensorboard_trace_handler(directory, use_gzip=True),
        record_shapes=True,
        with_stack=True,
    ) as profiler:
        for _ in range(_STEPS):
            model(torch.randn(512, _WIDTH, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
