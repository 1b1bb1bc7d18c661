"""Gradient norms, where a training loop clips by them or computes them.

`clip_grad_norm_` finds the two functions that compute the norm and clip by it in its own module whenever it
is called. So these are watched, and it does not matter who has imported `clip_grad_norm_` before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from rankwatch.automatic.patching import watch
from rankwatch.automatic.values import values
from rankwatch.conventions import Capability

_PUBLIC = "torch.nn.utils"
_SHOWS = Capability.GRADIENT_NORM


def targets() -> Mapping[str, Callable[[ModuleType], object]]:
    """torch's module of clipping, and FSDP version 1, which clips by itself."""
    return {
        "torch.nn.utils.clip_grad": _patch,
        "torch.distributed.fsdp.fully_sharded_data_parallel": _patch_fsdp,
    }


def _patch(module: ModuleType) -> None:
    public = sys.modules.get(_PUBLIC)
    originals = {name: getattr(module, name, None) for name in ("_clip_grads_with_norm_", "_get_total_norm")}
    for name, original in originals.items():
        began, ended = (None, _computed) if name == "_get_total_norm" else (_clips, None)
        watch(module, name, began=began, ended=ended, shows=_SHOWS)
        alias = name.removeprefix("_")
        if getattr(public, alias, None) is original:  # `public` was imported before
            watch(public, alias, began=began, ended=ended, shows=_SHOWS)


def _clips(
    parameters: Any = None, max_norm: Any = None, total_norm: Any = None, *rest: Any, **named: Any
) -> None:
    values.clips(total_norm)


def _computed(_: object, norm: Any, error: BaseException | None) -> None:
    if error is None:
        values.computed(norm)


def _patch_fsdp(module: ModuleType) -> None:
    def clipped(_: object, norm: Any, error: BaseException | None) -> None:
        if error is None:
            values.clips(norm)

    watch(module.FullyShardedDataParallel, "clip_grad_norm_", ended=clipped, shows=_SHOWS)
