"""A straggler that computes on a CPU: each layer sleeps in proportion to the time it has just taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from rankwatch_trainer.faults.conditions import Conditions


def slow_layers_on_cpu(
    layers: Iterable[nn.Module],
    conditions: Conditions,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Stretches forward and backward of each layer to `compute_factor` times their measured time."""
    for layer in layers:
        forward, backward = (_Stretch(conditions, clock, sleep) for _ in range(2))
        layer.register_forward_pre_hook(forward.begin)
        layer.register_forward_hook(forward.end)
        layer.register_full_backward_pre_hook(backward.begin)
        layer.register_full_backward_hook(backward.end)


class _Stretch:
    """Measures one direction of one layer and sleeps for the rest of its stretched time."""

    def __init__(
        self, conditions: Conditions, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._conditions = conditions
        self._clock = clock
        self._sleep = sleep
        self._began = 0.0

    def begin(self, *_: Any) -> None:
        self._began = self._clock()

    def end(self, *_: Any) -> None:
        factor = self._conditions.compute_factor
        if factor > 1.0:
            self._sleep((factor - 1.0) * (self._clock() - self._began))
