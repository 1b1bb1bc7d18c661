"""What rank 0 reports of the run: a line every few steps, the history, and the end record."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from torch import Tensor

_log = logging.getLogger(__name__)


class RunReport:
    """A context manager around the whole run. It writes the end record also after an exception.

    The end record is one line of JSON: outcome (finished, preempted, interrupted, failed), exception, steps
    done by this process, last step, final_loss (of rank 0; null if not finite), mean_step_seconds and
    steps_per_second. The time of a step runs from the end of the step before to its own end.
    """

    def __init__(
        self,
        *,
        is_writer: bool,
        steps: int,
        log_every: int,
        history: Path | None,
        output: TextIO,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._is_writer = is_writer
        self._steps = steps
        self._log_every = log_every
        self._history_path = history
        self._output = output
        self._clock = clock
        self._began = self._previous = clock()
        self._done = 0
        self._last_step = 0
        self._loss: Tensor | None = None
        self._history: list[tuple[int, float, Tensor]] = []
        self.outcome = "finished"
        """The loop sets it to `preempted` when it stops early."""

    def begin(self) -> None:
        """Start the clock of the first step: the start of the run is no step."""
        self._began = self._previous = self._clock()

    def step(self, number: int, loss: Tensor, learning_rate: float) -> None:
        """Record the end of a step. The loss is read, which waits for a GPU, only when a line is due."""
        now = self._clock()
        seconds, self._previous = now - self._previous, now
        self._done, self._last_step, self._loss = self._done + 1, number, loss
        if self._is_writer and self._history_path is not None:
            self._history.append((number, seconds, loss))
        if self._is_writer and (number % self._log_every == 0 or number == self._steps):
            template = "step %d/%d  loss %.4f  learning rate %.2e  %.3f s"
            _log.info(template, number, self._steps, loss.item(), learning_rate, seconds)

    def evaluated(self, number: int, loss: Tensor) -> None:
        """Log the loss of an evaluation after a step."""
        if self._is_writer:
            _log.info("step %d/%d  held-out loss %.4f", number, self._steps, loss.item())

    def __enter__(self) -> RunReport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_writer:
            return
        if kind is not None:
            self.outcome = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
        print(json.dumps(self._end_record(kind)), file=self._output, flush=True)
        if self._history_path is not None:
            self._write_history(self._history_path)

    def _end_record(self, kind: type[BaseException] | None) -> dict[str, Any]:
        elapsed = self._previous - self._began
        return {
            "record": "end",
            "outcome": self.outcome,
            "exception": kind.__name__ if kind else None,
            "steps": self._done,
            "last_step": self._last_step,
            "final_loss": _finite(self._loss),
            "mean_step_seconds": elapsed / self._done if self._done else None,
            "steps_per_second": self._done / elapsed if elapsed > 0 else None,
        }

    def _write_history(self, path: Path) -> None:
        columns: dict[str, list[Any]] = {
            "step": [number for number, _, _ in self._history],
            "seconds": [seconds for _, seconds, _ in self._history],
            "loss": [_finite(loss) for _, _, loss in self._history],
        }
        try:
            path.write_text(json.dumps(columns))
        except OSError as cause:
            _log.error("could not write the history to %s: %s", path, cause.strerror)


def _finite(loss: Tensor | None) -> float | None:
    value = math.nan if loss is None else loss.item()
    return value if math.isfinite(value) else None
