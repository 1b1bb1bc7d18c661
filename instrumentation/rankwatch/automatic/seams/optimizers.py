"""Steps of optimizers, by torch's hooks for all of them: also for subclasses with a `step` of their own, and
for compiled ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType, ModuleType
from typing import Any

from rankwatch.automatic import loop
from rankwatch.automatic.patching import guarded, watch
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions import Capability, Unseen

_PRE, _POST = "register_optimizer_step_pre_hook", "register_optimizer_step_post_hook"
_STEPS = (
    ("wrapper", "torch/optim/optimizer.py"),
    ("step", "torch/amp/grad_scaler.py"),
    ("step", "accelerate/optimizer.py"),
    ("_take_model_step", "deepspeed/runtime/engine.py"),
)
"""Functions that are on the stack while an optimizer steps: part of the name, which the compiler extends, and
end of the file."""
_FILES = tuple(file for _, file in _STEPS)
_setting_up = 0
"""Functions that are running and step optimizers only to have them allocate their state."""


def targets() -> Mapping[str, Callable[[ModuleType], object]]:
    """torch's base class of optimizers, and its function that steps them before it loads their state."""
    return {
        "torch.optim.optimizer": _register,
        "torch.distributed.checkpoint.state_dict": lambda module: only_sets_up(module, "_init_optim_state"),
    }


def only_sets_up(owner: Any, name: str) -> None:
    """Steps of optimizers inside this function train nothing."""
    watch(owner, name, began=_set_up_begins, ended=_set_up_ends)


def _set_up_begins(*args: object, **kwargs: object) -> None:
    global _setting_up
    _setting_up += 1


def _set_up_ends(*_: object) -> None:
    global _setting_up
    _setting_up -= 1


def _register(module: ModuleType) -> None:
    pre, post = getattr(module, _PRE, None), getattr(module, _POST, None)
    if pre is None or post is None:
        for each in (Capability.STEPS, Capability.OPTIMIZER):
            visibility.cannot_see(each, Unseen.TOO_OLD)
        return
    pre(guarded("watch the beginning of optimizer steps", _began))
    post(guarded("watch the end of optimizer steps", _ended))


def _began(optimizer: Any, args: object, kwargs: object) -> None:
    if _setting_up:
        return
    running = loop.current()
    if running.stepping and not is_inside_step(own_frames=1):
        running.optimizers_raised()
    running.optimizer_began(optimizer)


def _ended(optimizer: Any, args: object, kwargs: object) -> None:
    if not _setting_up:
        loop.current().optimizer_ended(optimizer)


def is_inside_step(own_frames: int) -> bool:
    """True if the caller runs inside the step of an optimizer or of what wraps it, by the stack: a step that
    raises calls no hook at its end. own_frames: those of the step that begins now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(_FILES) and any(  # few frames pass the first test
            name in code.co_name and code.co_filename.endswith(file) for name, file in _STEPS
        ):
            own_frames -= 1
            if own_frames < 0:
                return True
        frame = frame.f_back
    return False
