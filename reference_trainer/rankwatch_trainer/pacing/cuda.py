"""A straggler that computes on a GPU: after each layer the stream spins in proportion to its time.

The time of a layer is taken with CUDA events and read when the GPU has passed them, so that nothing
here waits for the GPU: a layer spins for as long as its latest finished execution asks for.
"""

# torch leaves its CUDA events untyped.
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from rankwatch_trainer.faults.conditions import Conditions

_CALIBRATION_CYCLES = 20_000_000
"""About 10 ms on present GPUs: long against the cost of a launch."""


def slow_layers_on_cuda(layers: Iterable[nn.Module], conditions: Conditions) -> None:
    """Stretches forward and backward of each layer to `compute_factor` times their measured GPU time."""
    cycles_per_ms = _spin_cycles_per_ms()
    for layer in layers:
        forward, backward = (_Stretch(conditions, cycles_per_ms) for _ in range(2))
        layer.register_forward_pre_hook(forward.begin)
        layer.register_forward_hook(forward.end)
        layer.register_full_backward_pre_hook(backward.begin)
        layer.register_full_backward_hook(backward.end)


class _Stretch:
    """Measures one direction of one layer, and lets its stream spin for the rest of its stretched time."""

    def __init__(self, conditions: Conditions, cycles_per_ms: float) -> None:
        self._conditions = conditions
        self._cycles_per_ms = cycles_per_ms
        self._began, self._ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._measuring = False
        self._pending = False
        self._layer_ms = 0.0

    def begin(self, *_: Any) -> None:
        if self._pending and self._ended.query():
            self._layer_ms = self._began.elapsed_time(self._ended)
            self._pending = False
        self._measuring = not self._pending and self._conditions.compute_factor > 1.0
        if self._measuring:
            self._began.record()

    def end(self, *_: Any) -> None:
        if self._measuring:
            self._ended.record()
            self._pending = True
        spin_ms = (self._conditions.compute_factor - 1.0) * self._layer_ms
        if spin_ms > 0:
            torch.cuda._sleep(int(spin_ms * self._cycles_per_ms))


def _spin_cycles_per_ms() -> float:
    """Speed of the spinning kernel, measured once before training, where waiting for the GPU is free."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_CALIBRATION_CYCLES)  # the first launch loads the kernel
    began.record()
    torch.cuda._sleep(_CALIBRATION_CYCLES)
    ended.record()
    ended.synchronize()
    elapsed_ms: float = began.elapsed_time(ended)
    return _CALIBRATION_CYCLES / elapsed_ms
