"""What truly happens in a training loop, by the loop's own stopwatch, written as JSON at its end.

With `LOOP_HOOKS=explicit` the same blocks are explicit hooks of rankwatch as well. Otherwise a loop that uses
this file calls nothing of rankwatch.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

EXPLICIT = os.environ.get("LOOP_HOOKS") == "explicit"


class Witness:
    """Counts and times of one rank. All moments are on CLOCK_MONOTONIC, as in a black box."""

    def __init__(self) -> None:
        self.run: Any = None
        if EXPLICIT:
            import rankwatch

            self.run = rankwatch.start()
        self.intervals: list[tuple[str, float, float]] = []
        self.step_ends: list[tuple[float, float]] = []
        self.losses: list[float] = []
        self.skipped = 0
        self._step_began = 0.0

    # -- stopwatch and explicit hooks ---------------------------------------------------------

    @contextmanager
    def watch(self, name: str) -> Iterator[None]:
        """The stopwatch alone."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.intervals.append((name, began, time.monotonic()))

    def hook(self, name: str) -> AbstractContextManager[None]:
        """The explicit phase alone."""
        return self.run.phase(name) if self.run else nullcontext()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Both."""
        with self.hook(name), self.watch(name):
            yield

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The loader; each wait is `data_wait`. An exhausted loader's last look is no wait."""
        hooked = iter(self.run.batches(loader) if self.run else loader)
        while True:
            began = time.monotonic()
            try:
                batch = next(hooked)
            except StopIteration:
                return
            self.intervals.append(("data_wait", began, time.monotonic()))
            yield batch

    def begin_step(self) -> None:
        if self.run:
            self.run.begin_step()

    def end_step(self) -> None:
        if self.run:
            self.run.end_step()
        self.step_ends.append((time.monotonic(), time.process_time()))

    @contextmanager
    def step(self) -> Iterator[None]:
        self.begin_step()
        yield
        self.end_step()

    def loss(self, value: Any) -> None:
        """The loss that this loop would log for the step."""
        number = float(value.detach() if isinstance(value, torch.Tensor) else value)
        self.losses.append(number)
        if self.run:
            self.run.scalar("loss", number)

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.run:
                stack.enter_context(self.run.checkpoint("save"))
            stack.enter_context(self.watch("checkpoint"))
            yield

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        with self.run.evaluation() if self.run else nullcontext(), self.watch("evaluation"):
            yield

    # -- the end ------------------------------------------------------------------------------

    def finish(self, model: torch.nn.Module) -> None:
        """Write the JSON, with a digest of the weights and of the random state."""
        if self.run:
            self.run.finish()
        rank = int(os.environ.get("RANK", "0"))
        document = {
            "rank": rank,
            "steps": len(self.step_ends),
            "skipped": self.skipped,
            "losses": [each.hex() for each in self.losses],
            "intervals": self.intervals,
            "step_ends": self.step_ends,
            "weights": _digest(model),
            "random_state": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
        }
        directory = Path(os.environ["LOOP_RESULTS"])
        (directory / f"rank{rank}.json").write_text(json.dumps(document))


def _digest(model: torch.nn.Module) -> str:
    """SHA-256 of all parameters and buffers of this rank, bit for bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        digest.update(name.encode())
        digest.update(local.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
