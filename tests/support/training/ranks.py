"""Rank processes for the agent's tests: real black boxes, written by real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.training.collector import RanksCollector
from support.agent.process import until

_PRELUDE = """
import os, signal, sys, time, rankwatch
from pathlib import Path
exec(sys.argv[6])
directory, run_id, rank, world = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
gpu = sys.argv[5] or None
run = rankwatch.start(
    run=run_id, rank=rank, world_size=world, directory=directory, target_steps=100, gpu=gpu
)
def steps(count, forward=0.0):
    for _ in range(count):
        with run.step():
            with run.phase("forward"):
                time.sleep(forward)
            run.scalar("loss", 2.0)
            run.work(tokens=64)
def ready():
    print("ready", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def rank(
    directory: Path,
    code: str,
    *,
    run: str = "job",
    number: int = 0,
    world: int = 1,
    gpu: str = "",
    before: str = "",
    prefix: Sequence[str] = (),
) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `code` as a rank, up to its first `ready()`; killed at the end. `before` is code
    that runs before the run starts, `prefix` a command that runs another command."""
    command = [*prefix, sys.executable, "-c", _PRELUDE + code]
    command += [str(directory), run, str(number), str(world), gpu, before]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def go_on(process: subprocess.Popen[str]) -> None:
    """Let the rank run on from `ready()`, and wait for its next one or for its end."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()


def kill(process: subprocess.Popen[str]) -> None:
    """Kill the rank, and wait for its end."""
    process.kill()
    process.wait()


def settled(collector: RanksCollector, good: Callable[[Collection], bool]) -> Collection:
    """Collect until it is so: the last step is settled a moment after its end."""
    found: list[Collection] = []

    def so() -> bool:
        found[:] = [collector.collect()]
        return good(found[0])

    until(so, "what was expected is collected", seconds=20.0)
    return found[0]


def values(collection: Collection, name: str) -> dict[tuple[str, ...], float]:
    """Values of one metric by its labels."""
    return {
        tuple(map(str, each.labels)): each.value for each in collection.series if each.metric.name == name
    }


def faults(collection: Collection) -> dict[str, float]:
    """Faults of black boxes that have occurred, by reason."""
    counted = values(collection, "rankwatch_blackbox_faults_total")
    return {reason: count for (reason,), count in counted.items() if count}


def state(collection: Collection) -> dict[str, str]:
    """State of each rank, by its number."""
    return {labels[1]: labels[2] for labels in values(collection, "rankwatch_rank_state")}
