"""A rank of a pipeline-parallel job with several replicas. Its stages sleep instead of computing.

Run as a script with the arguments `STAGES SLOW_STAGE FACTOR` and the environment of torchrun. For each
microbatch, stages send activations and gradients to each other. Then the replicas of a stage all-reduce its
gradients. The layers of `SLOW_STAGE` take `FACTOR` times as long.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

import rankwatch

MICROBATCHES = 3
FORWARD_SECONDS, BACKWARD_SECONDS = 0.05, 0.1
_VALUES = 1000
"""Number of values in an activation, and in the gradients of a stage."""


class Stage:
    """The work of one rank in a step."""

    def __init__(self, run: rankwatch.Run | rankwatch.DisabledRun, stages: int, factor: float) -> None:
        self._run = run
        rank, replicas = dist.get_rank(), dist.get_world_size() // stages
        stage = rank // replicas
        self._factor = factor
        self._before = rank - replicas if stage else None
        self._after = rank + replicas if stage < stages - 1 else None
        rows = [range(first, first + replicas) for first in range(0, dist.get_world_size(), replicas)]
        self._peers = [dist.new_group(list(row)) for row in rows][stage]

    def step(self) -> None:
        """Run all microbatches forward, then all backward, then reduce the gradients."""
        run = self._run
        with run.step():
            for _ in range(MICROBATCHES):
                self._compute("forward", FORWARD_SECONDS, self._before)
                self._pass_on(self._after)
            for _ in range(MICROBATCHES):
                self._compute("backward", BACKWARD_SECONDS, self._after)
                self._pass_on(self._before)
            with run.phase("optimizer"):
                dist.all_reduce(torch.ones(_VALUES), group=self._peers)

    def _compute(self, phase: str, seconds: float, source: int | None) -> None:
        if source is not None:
            dist.recv(torch.empty(_VALUES), src=source)
        with self._run.phase(phase):
            time.sleep(seconds * self._factor)

    def _pass_on(self, target: int | None) -> None:
        if target is not None:
            dist.send(torch.ones(_VALUES), dst=target)


def main(stages: int, slow_stage: int, factor: float) -> None:
    """Run steps forever."""
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    stage, replica = divmod(rank, world // stages)
    coordinates = {"pp": (stage, stages), "dp": (replica, world // stages)}
    with rankwatch.start(coordinates=coordinates) as run:
        dist.init_process_group("gloo")
        work = Stage(run, stages, factor if stage == slow_stage else 1.0)
        while True:
            work.step()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
