"""A job that saves and resumes, and keeps a stopwatch of its own beside what it records. Its ranks are
forked, and make believe that they import:

interrupted.py FOLDER STEPS SAVE_EVERY COMPILE_SECONDS: the checkpoint and the stopwatches go into the folder.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist

import rankwatch

IMPORT_SECONDS = 1.0
"""What a rank that is not forked takes before its run begins."""
DATA_SECONDS = 0.01


def main(folder: Path, steps: int, save_every: int, compile_seconds: float) -> None:
    """Train, or make believe: all times are known."""
    rank = int(os.environ["RANK"])
    with (folder / f"stopwatch-{rank}.jsonl").open("a", buffering=1) as stopwatch:
        note(stopwatch, "start", process_start(), os.getpid(), int(os.environ["ATTEMPT"]))
        time.sleep(IMPORT_SECONDS)
        dist.init_process_group("gloo")
        run = rankwatch.start(target_steps=steps)
        saved = folder / "saved"
        first = load(run, saved) if saved.exists() else 0
        with run:
            for step in range(first, steps):
                compute = 0.24 if rank == 1 else 0.18
                moments = train(run, step, compute + (compile_seconds if step == first else 0.0))
                note(stopwatch, "step", step, *moments)
                if (step + 1) % save_every == 0:
                    began = time.time()
                    save(run, saved, step, writes=rank == 0)
                    note(stopwatch, "save", step, time.time() - began)
            dist.barrier()
        note(stopwatch, "end", time.time())
    dist.destroy_process_group()


def process_start() -> float:
    """Unix time."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def note(stopwatch: TextIO, *what: object) -> None:
    """One line, on disk at once."""
    print(json.dumps(what), file=stopwatch)


def load(run: rankwatch.Run, saved: Path) -> int:
    """The step to go on with."""
    with run.checkpoint("load", step=0):
        time.sleep(0.2)
        step = int(saved.read_text())
    run.resumed(step)
    return step


def train(run: rankwatch.Run, step: int, compute: float) -> list[float]:
    """One step; its moments: the beginning, the batch, before and after the collective. Unix time. What the
    collective is given is made before it, like a gradient: on a slow machine it takes as long as the call."""
    moments = [time.time()]
    with run.step(step):
        with run.phase("data_wait"):
            time.sleep(DATA_SECONDS)
        moments.append(time.time())
        with run.phase("forward"):
            time.sleep(compute)
        with run.phase("backward"):
            gradient = torch.ones(8)
            moments.append(time.time())
            dist.all_reduce(gradient)
            moments.append(time.time())
    return moments


def save(run: rankwatch.Run, saved: Path, step: int, *, writes: bool) -> None:
    """All ranks wait for the one that writes."""
    with run.checkpoint("save", step=step):
        time.sleep(0.1)
        if writes:
            new = saved.with_suffix(".new")
            new.write_text(str(step + 1))
            new.replace(saved)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
