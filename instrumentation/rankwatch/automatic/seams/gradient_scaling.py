"""Steps that a gradient scaler carries out or skips. Whether it does is on the device, so nobody asks: the
iteration ends either way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from rankwatch.automatic import loop
from rankwatch.automatic.patching import watch
from rankwatch.automatic.seams.optimizers import is_inside_step


def targets() -> Mapping[str, Callable[[ModuleType], object]]:
    """torch's scaler. Those of CUDA and FSDP inherit `step`."""
    return {
        "torch.amp.grad_scaler": lambda module: _patch(module.GradScaler),
        "torch.distributed.fsdp.sharded_grad_scaler": lambda module: _patch(module.ShardedGradScaler),
    }


def _patch(scaler: type) -> None:
    watch(scaler, "step", began=_step_began, ended=_step_ended)
    watch(scaler, "update", began=_update_began, ended=_update_ended)


def _step_began(scaler: Any, optimizer: Any, *args: object, **kwargs: object) -> tuple[Any, Any]:
    running = loop.current()
    if running.stepping and not is_inside_step(own_frames=0):
        running.optimizers_raised()
    running.optimizer_began(optimizer, scaler)
    return scaler, optimizer


def _step_ended(token: tuple[Any, Any], result: object, error: BaseException | None) -> None:
    scaler, optimizer = token
    loop.current().optimizer_ended(optimizer, scaler)


def _update_began(scaler: Any, *args: object, **kwargs: object) -> bool:
    return loop.current().update_began(scaler)


def _update_ended(token: bool, result: object, error: BaseException | None) -> None:
    if token:
        loop.current().update_ended()
