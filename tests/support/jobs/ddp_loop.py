"""A small DDP job for the tests of the collective hook.

With the argument `kill` the last rank kills itself. With `exit` rank 0 exits with a collective in flight.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import rankwatch

run = rankwatch.start(target_steps=4)
dist.init_process_group("gloo")
torch.manual_seed(0)
rank, size = dist.get_rank(), dist.get_world_size()
group = dist.new_group(list(range(size)), group_desc="pairs")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
with run:
    for step in range(4):
        with run.step():
            with run.phase("forward"):
                loss = model(torch.randn(4, 8)).square().mean()
            with run.phase("backward"):
                loss.backward()
            with run.phase("communication"):
                dist.all_reduce(torch.ones(10), group=group)
                dist.broadcast(torch.ones(10), 0)
                dist.all_gather([torch.ones(5) for _ in range(size)], torch.ones(5))
                dist.all_reduce(torch.ones(3), async_op=True).wait()
            run.scalar("loss", loss)
        if "kill" in sys.argv and step == 2 and rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    if "exit" in sys.argv:
        if rank == 0:
            dist.all_reduce(torch.ones(3), async_op=True)
            sys.exit(3)
        time.sleep(1000.0)  # the test kills it
dist.destroy_process_group()
