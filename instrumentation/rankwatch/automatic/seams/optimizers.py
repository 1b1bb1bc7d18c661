"""Steps of optimizers, by torch's hooks for all of them: also for subclasses with a `step` of their own, and
for compiled ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from rankwatch.automatic import loop
from rankwatch.automatic.patching import guarded
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions import Capability, Unseen

_PRE, _POST = "register_optimizer_step_pre_hook", "register_optimizer_step_post_hook"


def targets() -> Mapping[str, Callable[[ModuleType], object]]:
    """torch's base class of optimizers."""
    return {"torch.optim.optimizer": _register}


def _register(module: ModuleType) -> None:
    pre, post = getattr(module, _PRE, None), getattr(module, _POST, None)
    if pre is None or post is None:
        for each in (Capability.STEPS, Capability.OPTIMIZER):
            visibility.cannot_see(each, Unseen.TOO_OLD)
        return
    pre(guarded("watch the beginning of optimizer steps", _began))
    post(guarded("watch the end of optimizer steps", _ended))


def _began(optimizer: Any, args: object, kwargs: object) -> None:
    loop.current().optimizer_began(optimizer)


def _ended(optimizer: Any, args: object, kwargs: object) -> None:
    loop.current().optimizer_ended(optimizer)
