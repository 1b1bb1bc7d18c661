"""A job of two ranks on gloo whose ranks are started in one of the ways that set no variable RANK.

launched.py spawn STORE: torch.multiprocessing.spawn. Rank 0 calls `start` before `init_process_group`, rank 1
    after it.
launched.py lightning STORE: as Lightning's launcher. The first process starts the other one.
"""

from __future__ import annotations

import os
import subprocess
import sys

import torch
import torch.distributed as dist

import rankwatch


def train(run: rankwatch.Run | rankwatch.DisabledRun) -> None:
    with run:
        for _ in range(3):
            with run.step():
                dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()


def join(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)


def spawned(rank: int, store: str) -> None:
    if rank:
        join(rank, store)
    run = rankwatch.start()
    if not rank:
        join(rank, store)
    train(run)


def lightning(store: str) -> None:
    run = rankwatch.start()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if not local_rank:
        os.environ |= {"WORLD_SIZE": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        other = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": "1"})
    join(local_rank, store)
    train(run)
    if not local_rank:
        assert other.wait() == 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    way, place = sys.argv[1:]
    if way == "lightning":
        lightning(place)
    else:
        torch.multiprocessing.spawn(spawned, (place,), nprocs=2)
