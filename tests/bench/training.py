"""Part `training`: how much slower a training step is with rankwatch than without.

Runs without and with rankwatch alternate, and begin and end without. Each run with rankwatch is compared with
the mean of its two neighbours, which removes the slow drift of a shared machine. The differences between
successive runs without rankwatch show the noise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from .processes import rankwatch_agent, temporary_directory
from .result import Result, Row, limited
from .spread import spread
from .trainer_runs import Workload, median_step_seconds

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
ALONE = Workload(
    name="1 rank, 5 ms",
    target_step_seconds=0.005,
    ranks=1,
    layers=1,
    forward_seconds=0.0010,
    backward_seconds=0.0020,
    steps=1200,
    warmup_steps=200,
)
WORKLOADS = ((LONG, 0.005), (SHORT, 0.02), (ALONE, 0.02))
"""Workload, and the largest share by which rankwatch may slow down its median step."""


class Alternation(NamedTuple):
    """Median seconds per step of each run, in order: without[0], recorded[0], without[1], ..."""

    without: list[float]
    recorded: list[float]

    def slowdowns(self) -> list[float]:
        """Slowdown of each run with rankwatch against its neighbours; 0.01 is one percent slower."""
        return [one / before - 1 for one, before in zip(self.recorded, self._around(), strict=True)]

    def costs(self) -> list[float]:
        """Seconds added to a step of each run with rankwatch."""
        return [one - before for one, before in zip(self.recorded, self._around(), strict=True)]

    def differences_without(self) -> list[float]:
        """Difference of each run without rankwatch from the previous one without it: pure noise."""
        return [later / earlier - 1 for earlier, later in pairwise(self.without)]

    def _around(self) -> list[float]:
        return [(earlier + later) / 2 for earlier, later in pairwise(self.without)]


def measure(*, quick: bool) -> Result:
    """Run the part. Raises BenchError if a run fails."""
    rows: list[Row] = []
    samples: dict[str, object] = {}
    for workload, at_most in WORKLOADS:
        shortened = replace(workload, steps=workload.steps // 4, warmup_steps=workload.warmup_steps // 4)
        used = shortened if quick else workload
        found = _alternate(used, QUICK_PAIRS if quick else PAIRS)
        rows += _rows(used, found, at_most)
        samples[used.name] = {"seconds_without": found.without, "seconds_with": found.recorded}
    return Result(
        title="Training: steps with and without rankwatch",
        rows=tuple(rows),
        notes=_notes(),
        samples={"median_step_seconds": samples},
    )


def _alternate(workload: Workload, pairs: int) -> Alternation:
    found = Alternation([], [])
    for number in range(2 * pairs + 1):
        recorded = number % 2 == 1
        with temporary_directory() as name:
            directory = Path(name)
            blackboxes = directory / "blackboxes"
            with rankwatch_agent(directory, blackboxes):
                seconds = median_step_seconds(workload, directory, blackboxes, recorded=recorded)
        (found.recorded if recorded else found.without).append(seconds)
        what = "with" if recorded else "without"
        print(f"{workload.name}: {_ms(seconds)} per step {what}", file=sys.stderr, flush=True)
    return found


def _rows(workload: Workload, found: Alternation, at_most: float) -> list[Row]:
    name = workload.name
    without, recorded = spread(found.without), spread(found.recorded)
    slowdown, cost = spread(found.slowdowns()), spread(found.costs())
    return [
        Row(f"{name}: without", _pace(without.median), without.extremes(_ms)),
        Row(f"{name}: with", _pace(recorded.median), recorded.extremes(_ms)),
        limited(f"{name}: slowdown", slowdown.median, at_most, _percent, slowdown.extremes(_percent)),
        Row(f"{name}: cost per step", _us(cost.median), cost.extremes(_us)),
        _noise_row(name, found.differences_without()),
    ]


def _noise_row(name: str, differences: Sequence[float]) -> Row:
    noise = spread(differences)
    return Row(f"{name}: without / without", _percent(noise.median), noise.extremes(_percent))


def _notes() -> tuple[str, ...]:
    cores = len(os.sched_getaffinity(0))
    return (
        "Median step of rank 0 in each run, warm-up left out; torchrun, gloo, layers asleep, no checkpoints.",
        "An agent runs beside every run; it has black boxes to follow only in those with rankwatch.",
        f"{cores} cores: where `shortest` takes more than 5 ms, this machine cannot run {SHORT.ranks} ranks "
        "faster; `1 rank, 5 ms` then shows the cost at 5 ms.",
        "A slowdown within the range of without / without is not distinguishable from noise.",
    )


def _pace(seconds: float) -> str:
    return f"{1 / seconds:.2f} steps/s, {_ms(seconds)}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:+.0f} us"


def _percent(share: float) -> str:
    return f"{share:+.2%}"
