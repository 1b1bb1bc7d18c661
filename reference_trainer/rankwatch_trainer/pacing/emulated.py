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
    above can be reduced meanwhile, as on a real device. Both times are multiplied by `compute_factor`.
    """

    def __init__(
        self,
        width: int,
        conditions: Conditions,
        *,
        forward_seconds: float,
        backward_seconds: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self._conditions = conditions
        self._forward_seconds = forward_seconds
        self._backward_seconds = backward_seconds
        self._sleep = sleep

    def forward(self, x: Tensor) -> Tensor:
        """(batch, context, width) in and out."""
        out: Tensor = _Pause.apply(  # type: ignore[no-untyped-call]
            x + self.linear(x), self._pause_forward, self._pause_backward
        )
        return out

    def _pause_forward(self) -> None:
        self._sleep(self._forward_seconds * self._conditions.compute_factor)

    def _pause_backward(self) -> None:
        self._sleep(self._backward_seconds * self._conditions.compute_factor)


class _Pause(torch.autograd.Function):
    """The identity, which pauses in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Callable[[], None], backward: Callable[[], None]) -> Tensor:
        ctx.pause = backward
        forward()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.pause()
        return gradients[0], None, None
