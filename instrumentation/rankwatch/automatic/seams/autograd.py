"""Backward passes. `Tensor.backward` calls `torch.autograd.backward`; the outermost call counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from rankwatch.automatic import loop
from rankwatch.automatic.patching import watch
from rankwatch.conventions import Capability


def targets() -> Mapping[str, Callable[[ModuleType], object]]:
    """The two ways to begin one."""
    return {
        "torch._tensor": lambda module: _patch(getattr(module, "Tensor", None)),
        "torch.autograd": _patch,
    }


def _patch(owner: Any) -> None:
    watch(owner, "backward", began=_began, ended=_ended, shows=Capability.BACKWARD)


def _began(*args: Any, **kwargs: Any) -> bool:
    return loop.current().backward_began(args[0] if args else kwargs.get("tensors"))


def _ended(token: bool | None, result: object, error: BaseException | None) -> None:
    if token is not False:  # None if the other one has failed: then too the pass is over
        loop.current().backward_ended()
