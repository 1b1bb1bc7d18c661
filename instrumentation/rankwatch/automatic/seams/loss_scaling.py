"""The loss before a gradient scaler multiplies it. `backward` is given the product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from rankwatch.automatic.patching import watch
from rankwatch.automatic.values import values
from rankwatch.conventions import Capability


def targets() -> Mapping[str, Callable[[ModuleType], object]]:
    """torch's scaler, from which that of CUDA inherits `scale`, and the one of FSDP, which has its own."""
    return {
        "torch.amp.grad_scaler": lambda module: _patch(module.GradScaler),
        "torch.distributed.fsdp.sharded_grad_scaler": lambda module: _patch(module.ShardedGradScaler),
    }


def _patch(scaler: type) -> None:
    watch(scaler, "scale", began=_scales, ended=_scaled, shows=Capability.LOSS)


def _scales(scaler: Any, outputs: Any = None) -> Any:
    return outputs


def _scaled(outputs: Any, result: Any, error: BaseException | None) -> None:
    if error is None:
        values.scaled(outputs, result)
