"""Runs of the reference trainer: how long their steps took, and what CPU time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions import environment

from .process_usage import footprint
from .processes import background, tail
from .result import BenchError
from .spread import quantile

_SECONDS_BEYOND_STEPS = 120.0
"""Longest time for start and end of a run: torch is imported once per rank."""
_POLL_SECONDS = 0.005


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
            *("--steps", str(self.steps), "--log-every", str(self.warmup_steps)),
            *("--corpus-bytes", "200000", "--history", str(history)),
        ]


class RunCost(NamedTuple):
    """What one run took, without its start, its warm-up and its end."""

    step_seconds: float
    """Median step of rank 0."""
    cpu_seconds: float
    """CPU time per step of all processes of the job, user and system."""


def run_cost(workload: Workload, directory: Path, blackboxes: Path, *, recorded: bool) -> RunCost:
    """One run with or without rankwatch. Raises BenchError if it fails."""
    history, log = directory / "history.json", directory / "trainer.log"
    history.unlink(missing_ok=True)
    variables = {
        environment.DIRECTORY: str(blackboxes),
        environment.RUN: "bench",
        environment.SUMMARY: "0",  # printed once, at the exit: no part of a step
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **({} if recorded else {environment.DISABLE: "1"}),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={workload.ranks}", "-m", "rankwatch_trainer", *workload.flags(history)]
    first, last = workload.warmup_steps, workload.steps - workload.warmup_steps
    with background(command, log, variables) as process:
        used = [_cpu_seconds_at(step, process, log, workload) for step in (first, last)]
        _wait(process, log, workload)
    step_seconds = quantile(_steps(history, log)[workload.warmup_steps :], 0.5)
    return RunCost(step_seconds, (used[1] - used[0]) / (last - first))


def _cpu_seconds_at(step: int, process: subprocess.Popen[bytes], log: Path, workload: Workload) -> float:
    """CPU time of the whole job when rank 0 logs the step."""
    line = f"step {step}/{workload.steps} ".encode()
    deadline = time.monotonic() + _patience(workload)
    while line not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"the trainer did not reach step {step}: {tail(log)}")
        time.sleep(_POLL_SECONDS)
    return footprint(process.pid).cpu_seconds


def _wait(process: subprocess.Popen[bytes], log: Path, workload: Workload) -> None:
    patience = _patience(workload)
    try:
        status = process.wait(patience)
    except subprocess.TimeoutExpired:
        raise BenchError(f"the trainer did not end within {patience:.0f} s: {tail(log)}") from None
    if status != 0:
        raise BenchError(f"the trainer ended with status {status}: {tail(log)}")


def _patience(workload: Workload) -> float:
    busy = max(1.0, workload.ranks / (os.cpu_count() or 1))
    return _SECONDS_BEYOND_STEPS + 3 * busy * workload.steps * workload.target_step_seconds


def _steps(history: Path, log: Path) -> list[float]:
    """Seconds of each step. A trainer that cannot write them continues and logs why."""
    try:
        seconds: list[float] = json.loads(history.read_text())["seconds"]
    except OSError as error:
        raise BenchError(f"could not read the trainer's history: {error.strerror}: {tail(log)}") from error
    return seconds
