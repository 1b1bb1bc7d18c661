"""Runs of the reference trainer, and how long their steps took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rankwatch.conventions import environment

from .processes import background, tail
from .result import BenchError
from .spread import quantile

_SECONDS_BEYOND_STEPS = 120.0
"""Longest time for start and end of a run: torch is imported once per rank."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """An emulated training run; the sleeps make up most of a step."""

    name: str
    target_step_seconds: float
    """Intended length of a step; the real one is measured."""
    ranks: int
    layers: int
    forward_seconds: float
    """Time asleep in the forward of each layer."""
    backward_seconds: float
    steps: int
    warmup_steps: int
    """First steps, left out: the first backward builds DDP's buckets, allocators grow."""

    def flags(self, history: Path) -> list[str]:
        """The trainer's command line."""
        return [
            *("--device", "emulated", "--layers", str(self.layers)),
            *("--layer-forward-seconds", str(self.forward_seconds)),
            *("--layer-backward-seconds", str(self.backward_seconds)),
            *("--steps", str(self.steps), "--log-every", str(self.steps)),
            *("--corpus-bytes", "200000", "--history", str(history)),
        ]


def median_step_seconds(workload: Workload, directory: Path, blackboxes: Path, *, recorded: bool) -> float:
    """Median step of one run with or without rankwatch. Raises BenchError if it fails."""
    history, log = directory / "history.json", directory / "trainer.log"
    history.unlink(missing_ok=True)
    variables = {
        environment.DIRECTORY: str(blackboxes),
        environment.RUN: "bench",
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **({} if recorded else {environment.DISABLE: "1"}),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={workload.ranks}", "-m", "rankwatch_trainer", *workload.flags(history)]
    with background(command, log, variables) as process:
        _wait(process, log, workload)
    return quantile(_steps(history, log)[workload.warmup_steps :], 0.5)


def _wait(process: subprocess.Popen[bytes], log: Path, workload: Workload) -> None:
    busy = max(1.0, workload.ranks / (os.cpu_count() or 1))
    patience = _SECONDS_BEYOND_STEPS + 3 * busy * workload.steps * workload.target_step_seconds
    try:
        status = process.wait(patience)
    except subprocess.TimeoutExpired:
        raise BenchError(f"the trainer did not end within {patience:.0f} s: {tail(log)}") from None
    if status != 0:
        raise BenchError(f"the trainer ended with status {status}: {tail(log)}")


def _steps(history: Path, log: Path) -> list[float]:
    """Seconds of each step. A trainer that cannot write them continues and logs why."""
    try:
        seconds: list[float] = json.loads(history.read_text())["seconds"]
    except OSError as error:
        raise BenchError(f"could not read the trainer's history: {error.strerror}: {tail(log)}") from error
    return seconds
