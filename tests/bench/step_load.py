"""Ranks that record steps while a benchmark watches, each a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .errors import BenchError
from .processes import background, tail


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
