"""A real gloo job of the tests of evidence: after some steps the rank that is named sleeps in data_wait. Its
arguments: that rank, how many there are, and a file by which they find each other. They are forked from one
process, which says `ready` once it has imported PyTorch: that takes seconds, on a busy machine many."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

import rankwatch


def step_until_one_sleeps(rank: int, ranks: int, asleep: int, rendezvous: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    run = rankwatch.start(target_steps=1000)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    with run:
        for step in range(1000):
            with run.step():
                with run.phase("data_wait"):
                    time.sleep(1000.0 if step == 20 and rank == asleep else 0.01)
                with run.phase("communication"):
                    dist.all_reduce(torch.ones(10))


def main(asleep: int, ranks: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    print("ready", flush=True)
    for rank in range(ranks):
        if not os.fork():
            step_until_one_sleeps(rank, ranks, asleep, rendezvous)
            return
    for _ in range(ranks):
        os.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
