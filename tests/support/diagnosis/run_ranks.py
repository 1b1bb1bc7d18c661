"""A small gloo run of real processes, each rank with its own way to go wrong at a step."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_RANK = """
import os, signal, sys, threading, time
import torch
import torch.distributed as dist
import rankwatch
directory, port, rank, world, wrong, at, steps, host = sys.argv[1:9]
rank, world, at, steps = int(rank), int(world), int(at), int(steps)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
torch.set_num_threads(1)
run = rankwatch.start(run="job", rank=rank, world_size=world, local_rank=rank, host=host or None,
                      directory=directory, target_steps=steps, coordinates={"dp": (rank, world)})
dist.init_process_group("gloo", rank=rank, world_size=world)
values = torch.ones(1000)
for step in range(steps):
    with run.step():
        with run.phase("data_wait"):
            time.sleep(0.001)
            if step == at and wrong == "asleep":
                time.sleep(1000)
            if step == at and wrong == "late":
                time.sleep(2.0)
        if step == at and wrong == "stopped":  # while it waits in the collective for the one that is late
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGSTOP)).start()
        with run.phase("forward"):
            time.sleep(0.04 if wrong == "slow" else 0.01)
            if step == at and wrong == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if step == at and wrong == "raises":
                raise ZeroDivisionError
        with run.phase("backward"):
            time.sleep(0.08 if wrong == "slow" else 0.02)
        if step == at and wrong == "skips":
            pass
        elif step == at and wrong == "gathers":
            dist.all_gather_into_tensor(torch.empty(1000 * world), values)
        else:
            dist.all_reduce(values)
        if step == 2 and rank == 0:
            with run.checkpoint("save"):
                pass
        run.scalar("loss", 3.0 - 0.01 * step)
        run.work(tokens=64)
if steps > at:
    time.sleep(1000)  # one that skipped is through with its steps before the others see it
run.finish()
"""


@contextmanager
def gloo_run(
    directory: Path,
    wrong: Mapping[int, str],
    *,
    world: int = 3,
    at: int = 6,
    steps: int = 12,
    host: str = "",
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start all ranks; `wrong` says what a rank does at step `at`. All are killed at the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(world):
            numbers = map(str, (directory, port, rank, world, wrong.get(rank, "well"), at, steps, host))
            command = [sys.executable, "-c", _RANK, *numbers]
            ranks.append(subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL))
        yield ranks
    finally:
        for each in ranks:
            each.kill()
        for each in ranks:
            each.wait()
