"""Part `training`: what a training step costs with rankwatch and without.

Runs without and with rankwatch alternate, and begin and end without. Each run with rankwatch is compared with
the mean of its two neighbours, which removes the slow drift of a shared machine. The differences between
successive runs without rankwatch show the noise.

CPU time is judged, because on a shared machine the length of a step depends on the neighbours. The CPU time
that all ranks use more is held against what the cores could give in a step: a step cannot become longer by
more than that share, unless somebody sleeps on the training thread. The length of a step is shown beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions import environment

from .process_usage import footprint
from .processes import background, rankwatch_agent, tail, temporary_directory
from .result import BenchError, Result, Row, Spread, limited, quantile, spread


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


PAIRS = 5
QUICK_PAIRS = 1

LONG = Workload(
    name="4 ranks, 100 ms",
    target_step_seconds=0.1,
    ranks=4,
    layers=4,
    forward_seconds=0.0075,
    backward_seconds=0.0145,
    steps=160,
    warmup_steps=20,
)
SHORT = Workload(
    name="4 ranks, shortest",
    target_step_seconds=0.005,
    ranks=4,
    layers=1,
    forward_seconds=0.0001,
    backward_seconds=0.0001,
    steps=1000,
    warmup_steps=200,
)
WORKLOADS = ((LONG, 0.005), (SHORT, 0.02))
"""Workload, and the largest share of the cores' time that rankwatch may add to a step."""


class Alternation(NamedTuple):
    """One figure of each run, in order: without[0], recorded[0], without[1], ..."""

    without: list[float]
    recorded: list[float]

    def added(self) -> list[float]:
        """What each run with rankwatch has more than its neighbours."""
        return [one - before for one, before in zip(self.recorded, self._around(), strict=True)]

    def slowdowns(self) -> list[float]:
        """The same as a share of the neighbours; 0.01 is one percent more."""
        return [one / before - 1 for one, before in zip(self.recorded, self._around(), strict=True)]

    def noise(self) -> list[float]:
        """Difference of each run without rankwatch from the previous one without it."""
        return [later - earlier for earlier, later in pairwise(self.without)]

    def _around(self) -> list[float]:
        return [(earlier + later) / 2 for earlier, later in pairwise(self.without)]


class Costs(NamedTuple):
    """The runs of one workload."""

    steps: Alternation
    """Seconds of the median step."""
    cpu: Alternation
    """CPU seconds per step, of all ranks."""


def measure(*, quick: bool) -> Result:
    """Run the part. Raises BenchError if a run fails."""
    rows: list[Row] = []
    samples: dict[str, object] = {}
    for workload, at_most in WORKLOADS:
        shortened = replace(workload, steps=workload.steps // 4, warmup_steps=workload.warmup_steps // 4)
        used = shortened if quick else workload
        found = _alternate(used, QUICK_PAIRS if quick else PAIRS)
        rows += _rows(used, found, at_most)
        samples[used.name] = {name: each._asdict() for name, each in found._asdict().items()}
    return Result(
        title="Training: steps with and without rankwatch",
        rows=tuple(rows),
        notes=_notes(),
        samples={"seconds_per_step": samples},
    )


def _alternate(workload: Workload, pairs: int) -> Costs:
    found = Costs(Alternation([], []), Alternation([], []))
    for number in range(2 * pairs + 1):
        recorded = number % 2 == 1
        with temporary_directory() as name:
            directory = Path(name)
            blackboxes = directory / "blackboxes"
            with rankwatch_agent(directory, blackboxes):
                cost = run_cost(workload, directory, blackboxes, recorded=recorded)
        for alternation, seconds in ((found.steps, cost.step_seconds), (found.cpu, cost.cpu_seconds)):
            (alternation.recorded if recorded else alternation.without).append(seconds)
        shown = f"{_ms(cost.step_seconds)} and {_ms(cost.cpu_seconds)} of CPU per step"
        print(f"{workload.name}: {shown} {'with' if recorded else 'without'}", file=sys.stderr, flush=True)
    return found


def _rows(workload: Workload, found: Costs, at_most: float) -> list[Row]:
    name = workload.name
    capacity = _cores_of(workload) * spread(found.steps.without).median
    cost, noise = (_shares(each, capacity) for each in (found.cpu.added(), found.cpu.noise()))
    slowdown = spread(found.steps.slowdowns())
    added = spread(found.cpu.added())
    return [
        *(_run_row(f"{name}: {how}", found, how) for how in ("without", "recorded")),
        limited(f"{name}: added CPU time", cost.median, at_most, _percent, cost.extremes(_percent)),
        Row(f"{name}: without / without", _percent(noise.median), noise.extremes(_percent)),
        Row(f"{name}: added CPU time per rank", _us(added.median / workload.ranks)),
        Row(f"{name}: longer step", _percent(slowdown.median), slowdown.extremes(_percent)),
    ]


def _run_row(what: str, found: Costs, how: str) -> Row:
    steps, cpu = (spread(getattr(each, how)) for each in found)
    return Row(what, f"{_ms(steps.median)} a step, {_ms(cpu.median)} of CPU", steps.extremes(_ms))


def _cores_of(workload: Workload) -> int:
    """The cores that the job can use at one time."""
    return min(workload.ranks, len(os.sched_getaffinity(0)))


def _shares(seconds: Sequence[float], capacity: float) -> Spread:
    return spread([each / capacity for each in seconds])


def _notes() -> tuple[str, ...]:
    cores = len(os.sched_getaffinity(0))
    return (
        "Median step of rank 0 and CPU time of all ranks in each run, warm-up left out; torchrun, gloo, "
        "layers asleep, no checkpoints.",
        "Added CPU time is a share of a step times the cores that the job can use.",
        "An agent runs beside every run; it has black boxes to follow only in those with rankwatch.",
        f"{cores} cores: where `shortest` takes more than 5 ms, they cannot run {SHORT.ranks} ranks faster.",
        "A difference within the range of without / without is not distinguishable from noise.",
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:+.0f} us"


def _percent(share: float) -> str:
    return f"{share:+.2%}"


_SECONDS_BEYOND_STEPS = 120.0
"""Longest time for start and end of a run: torch is imported once per rank."""
_POLL_SECONDS = 0.005


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
