"""What torchtitan 0.3.0 logs in its loop, in the order of `torchtitan/trainer.py`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Span = Callable[[str], AbstractContextManager[Any]]
Scalar = Callable[[dict[str, int]], None]


class StandIn:
    """A structured logger as torchtitan's: names, levels and fields of the records are the same."""

    def __init__(self) -> None:
        self.logger = logging.Logger("torchtitan.structured_logger", logging.INFO)
        self._step: int | None = None

    def set_step(self, step: int) -> None:
        self._step = step

    def log_trace_scalar(self, scalars: dict[str, int]) -> None:
        for name, value in scalars.items():
            self._log("metric_value", event_name=name, value=value)

    @contextmanager
    def log_trace_span(self, name: str) -> Iterator[None]:
        self._log(f"{name}_start")
        try:
            yield
        except BaseException:
            self._log(f"{name}_error")
            raise
        finally:
            self._log(f"{name}_end", value=1.0)

    def _log(self, name: str, **fields: Any) -> None:
        self.logger.info(name, extra={"log_type_name": name, "step": self._step, **fields})


class DataloaderExhaustedError(Exception):
    """As torchtitan's: the data has ended."""


def train(
    *,
    span: Span,
    scalar: Scalar,
    set_step: Callable[[int], None],
    batches: Iterator[int],
    steps: int,
    loaded_step: int = 0,
    accumulation: int = 1,
    validate_every: int = 0,
    work: Callable[[], object] = lambda: None,
    update: Callable[[], object] = lambda: None,
) -> None:
    """`Trainer.train`. `work` stands for forward and backward, `update` for the optimizer.

    span, scalar, set_step: the functions of a structured logger.
    """
    step = loaded_step
    while step < steps:
        step += 1
        set_step(step)
        with span("step"):
            with span("gc_collect"):
                pass
            try:
                _train_step(span, scalar, batches, accumulation, work, update)
            except DataloaderExhaustedError:
                break
            with span("checkpoint_save"):
                pass
            if validate_every and step % validate_every == 0:
                with span("eval"):
                    pass
    with span("torch_distributed_teardown"):
        pass


def _train_step(
    span: Span,
    scalar: Scalar,
    batches: Iterator[int],
    accumulation: int,
    work: Callable[[], object],
    update: Callable[[], object],
) -> None:
    tokens = 0
    for _ in range(accumulation):
        with span("fetching_batch"):
            try:
                tokens += next(batches)
            except StopIteration:
                raise DataloaderExhaustedError from None
    scalar({"local_valid_tokens": tokens})
    for _ in range(accumulation):
        with span("fwd_bwd"):
            work()
    with span("optim"):
        update()
    with span("collect_dist_metrics"):
        scalar({"global_valid_tokens": tokens * 2})
