"""Emulated compute: a layer sleeps for as long as a real one would compute."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rankwatch_trainer.faults.conditions import Conditions


class EmulatedBlock(nn.Module):
    """A layer with weights, gradients and next to no arithmetic, which takes a given time.

    The sleep of its backward comes before its own gradients are ready, so that those of the layers
    above can be reduced meanwhile, as on a real device. Both times are those of sequences of `context`
    bytes, in proportion for shorter ones, and are multiplied by `compute_factor`.
    """

    def __init__(
        self,
        width: int,
        conditions: Conditions,
        *,
        context: int,
        forward_seconds: float,
        backward_seconds: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self._conditions = conditions
        self._context = context
        self._forward_seconds = forward_seconds
        self._backward_seconds = backward_seconds
        self._sleep = sleep

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) in and out."""
        out: Tensor = _Pause.apply(  # type: ignore[no-untyped-call]
            x + self.linear(x), self._pause_forward, self._pause_backward
        )
        return out

    def _pause_forward(self, length: int) -> None:
        self._pause(self._forward_seconds, length)

    def _pause_backward(self, length: int) -> None:
        self._pause(self._backward_seconds, length)

    def _pause(self, seconds: float, length: int) -> None:
        self._sleep(seconds * length / self._context * self._conditions.compute_factor)


class _Pause(torch.autograd.Function):
    """The identity, which pauses in both directions; it tells both the length of the sequences."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, forward: Callable[[int], None], backward: Callable[[int], None]
    ) -> Tensor:
        ctx.pause = backward
        forward(x.shape[1])
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.pause(gradients[0].shape[1])
        return gradients[0], None, None
