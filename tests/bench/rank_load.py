"""`python -m tests.bench.rank_load`: one rank that records what the reference trainer records.

It trains nothing and needs no torch. Each step holds 22 records: the wait for data, four forwards and
backwards, the optimizer, three scalars, work in two units, six collectives, and the step itself.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import rankwatch
from rankwatch import Run
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.collectives.groups import Groups
from rankwatch.members import members_text

from .processes import background, tail
from .result import BenchError

_MICRO_BATCHES = 4
_COLLECTIVES = 6
_BUCKET_BYTES = 25 << 20
"""DDP's default bucket."""
_COMPUTE_SHARE = 0.1
"""Part of a step that each forward and each backward takes."""


class Collectives:
    """Records the collectives of a step as the hook does: six all-reduces of DDP, each a millisecond long."""

    def __init__(self, writer: Writer, world_size: int) -> None:
        self._writer = writer
        self._operation = writer.name_number("all_reduce")
        self._group = Groups(writer)._enter("default_pg", members_text(range(world_size)), world_size)

    def reduce_gradients(self) -> None:
        """Record all-reduces that end now."""
        now = time.monotonic()
        for _ in range(_COLLECTIVES):
            count = self._group.collective(self._operation)
            self._group.in_flight(count, now - 0.001)
            self._writer.append(
                RecordKind.COLLECTIVE, self._operation, now - 0.001, now,
                layout.COLLECTIVE, _BUCKET_BYTES, count, self._group.number, 0, 0.0,
            )  # fmt: skip
            self._group.complete(count)


def record_steps(
    run: Run, collectives: Collectives, steps_per_second: float, stopping: threading.Event
) -> None:
    """Make steps at this pace until `stopping` is set. A late step does not shift the next one."""
    step_seconds = 1 / steps_per_second
    for batch in run.batches(_ticks(step_seconds, stopping)):
        with run.step():
            for number in range(_MICRO_BATCHES):
                with run.phase("forward"):
                    time.sleep(_COMPUTE_SHARE * step_seconds)
                with run.phase("backward"):
                    time.sleep(_COMPUTE_SHARE * step_seconds)
                    if number == _MICRO_BATCHES - 1:
                        collectives.reduce_gradients()
            with run.phase("optimizer"):
                pass
            run.scalar("loss", 2.0 + 1.0 / (1 + batch))
            run.scalar("gradient_norm", 0.5)
            run.scalar("learning_rate", 1e-3)
            run.work(samples=8, tokens=8 * 2048)


def _ticks(step_seconds: float, stopping: threading.Event) -> Iterator[int]:
    began = time.monotonic()
    number = 0
    while not stopping.wait(max(0.0, began + number * step_seconds - time.monotonic())):
        yield number
        number += 1


def main() -> int:
    """Record until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rank_load", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--steps-per-second", type=float, required=True)
    given = parser.parse_args()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    run = rankwatch.start(
        run="bench", rank=given.rank, world_size=given.world_size, directory=given.directory
    )
    if not isinstance(run, Run):
        print("rankwatch records nothing here", file=sys.stderr)
        return 1
    with run:
        record_steps(run, Collectives(run._writer, given.world_size), given.steps_per_second, stopping)
    return 0


if __name__ == "__main__":
    sys.exit(main())


@contextmanager
def step_load(directory: Path, *, ranks: int, steps_per_second: float) -> Iterator[Path]:
    """Start them; yields the directory of their black boxes. Raises BenchError where one ended meanwhile."""
    blackboxes = directory / "blackboxes"
    command = [sys.executable, "-m", f"{__package__}.rank_load", "--directory", str(blackboxes)]
    command += ["--world-size", str(ranks), "--steps-per-second", str(steps_per_second), "--rank"]
    logs = [directory / f"rank-{rank}.log" for rank in range(ranks)]
    with ExitStack() as stack:
        load = [stack.enter_context(background([*command, str(rank)], log)) for rank, log in enumerate(logs)]
        yield blackboxes
        for process, log in zip(load, logs, strict=True):
            if process.poll() is not None:
                raise BenchError(f"a rank of the load ended with {process.returncode}: {tail(log)}")
