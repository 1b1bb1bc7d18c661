"""What a loop calls to optimize: backward passes, gradient scaling and clipping, steps of optimizers.

- `Tensor.backward` calls `torch.autograd.backward`; the outermost call counts.
- A gradient scaler carries out steps or skips them. Whether it does is on the device, so nobody asks: the
  iteration ends either way. `backward` is given the loss that it has multiplied.
- `clip_grad_norm_` finds the two functions that compute the norm and clip by it in its own module whenever it
  is called. So these are watched, and it does not matter who has imported `clip_grad_norm_` before.
- Optimizers are watched by torch's hooks for all of them: also subclasses with a `step` of their own, and
  compiled ones.
"""

from __future__ import annotations

import sys
from types import FrameType, ModuleType
from typing import Any

from rankwatch.automatic import loop
from rankwatch.automatic.patches import modules
from rankwatch.automatic.patching import guarded, watch
from rankwatch.automatic.values import values
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions.vocabulary import Capability, Unseen

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


# -- backward passes ---------------------------------------------------------------------------------------


def patch_tensor(module: ModuleType) -> None:
    """Watch the method of tensors in `torch._tensor`."""
    patch_autograd(getattr(module, "Tensor", None))


def patch_autograd(owner: Any) -> None:
    """Watch the function `backward` of `torch.autograd`."""
    watch(owner, "backward", began=_backward_began, ended=_backward_ended, shows=Capability.BACKWARD)


def _backward_began(*args: Any, **kwargs: Any) -> bool:
    return loop.current().backward_began(args[0] if args else kwargs.get("tensors"))


def _backward_ended(token: bool | None, result: object, error: BaseException | None) -> None:
    if token is not False:  # None if the other one has failed: then too the pass is over
        backward_ended()


def backward_ended() -> None:
    """Report the end of a backward pass. If its forward pass was not seen, look for the module later on."""
    if loop.current().backward_ended():
        modules.learn_more()


# -- gradient scalers --------------------------------------------------------------------------------------


def patch_scaler(module: ModuleType) -> None:
    """Watch torch's scaler. Those of CUDA inherit from it, the one of FSDP inherits `step`."""
    _watch_scaler(module.GradScaler)


def patch_sharded_scaler(module: ModuleType) -> None:
    """Watch FSDP's scaler, which scales by itself."""
    _watch_scaler(module.ShardedGradScaler)


def _watch_scaler(scaler: type) -> None:
    watch(scaler, "step", began=_scaled_step_began, ended=_scaled_step_ended)
    watch(scaler, "update", began=_update_began, ended=_update_ended)
    watch(scaler, "scale", began=_scale_began, ended=_scaled, shows=Capability.LOSS)


def _scaled_step_began(scaler: Any, optimizer: Any, *args: object, **kwargs: object) -> tuple[Any, Any]:
    running = loop.current()
    if running.stepping and not is_inside_step(own_frames=0):
        running.optimizers_raised()
    running.optimizer_began(optimizer, scaler)
    return scaler, optimizer


def _scaled_step_ended(token: tuple[Any, Any], result: object, error: BaseException | None) -> None:
    scaler, optimizer = token
    loop.current().optimizer_ended(optimizer, scaler)


def _update_began(scaler: Any, *args: object, **kwargs: object) -> bool:
    return loop.current().update_began(scaler)


def _update_ended(token: bool, result: object, error: BaseException | None) -> None:
    if token:
        loop.current().update_ended()


def _scale_began(scaler: Any, outputs: Any = None) -> Any:
    return outputs


def _scaled(outputs: Any, result: Any, error: BaseException | None) -> None:
    if error is None:
        values.scaled(outputs, result)


# -- clipping ----------------------------------------------------------------------------------------------


def patch_clipping(module: ModuleType) -> None:
    """Watch torch's functions, also where `torch.nn.utils` was imported before."""
    public = sys.modules.get("torch.nn.utils")
    originals = {name: getattr(module, name, None) for name in ("_clip_grads_with_norm_", "_get_total_norm")}
    for name, original in originals.items():
        began, ended = (None, _norm_computed) if name == "_get_total_norm" else (_clip_began, None)
        watch(module, name, began=began, ended=ended, shows=Capability.GRADIENT_NORM)
        alias = name.removeprefix("_")
        if getattr(public, alias, None) is original:
            watch(public, alias, began=began, ended=ended, shows=Capability.GRADIENT_NORM)


def _clip_began(
    parameters: Any = None, max_norm: Any = None, total_norm: Any = None, *rest: Any, **named: Any
) -> None:
    values.clips(total_norm)


def _norm_computed(_: object, norm: Any, error: BaseException | None) -> None:
    if error is None:
        values.computed(norm)


def patch_fsdp_clipping(module: ModuleType) -> None:
    """Watch version 1 of FSDP, which clips by itself."""

    def clipped(_: object, norm: Any, error: BaseException | None) -> None:
        if error is None:
            values.clips(norm)

    watch(module.FullyShardedDataParallel, "clip_grad_norm_", ended=clipped, shows=Capability.GRADIENT_NORM)


# -- optimizers --------------------------------------------------------------------------------------------


def patch_optimizers(module: ModuleType) -> None:
    """Register torch's hooks for all optimizers."""
    pre, post = getattr(module, _PRE, None), getattr(module, _POST, None)
    if pre is None or post is None:
        for each in (Capability.STEPS, Capability.OPTIMIZER):
            visibility.cannot_see(each, Unseen.TOO_OLD)
        return
    pre(guarded("watch the beginning of optimizer steps", _step_began))
    post(guarded("watch the end of optimizer steps", _step_ended))


def patch_state_loading(module: ModuleType) -> None:
    """Leave out the steps that torch makes before it loads the state of an optimizer."""
    only_sets_up(module, "_init_optim_state")


def only_sets_up(owner: Any, name: str) -> None:
    """Mark a function in which steps of optimizers train nothing."""
    watch(owner, name, began=_set_up_began, ended=_set_up_ended)


def _set_up_began(*args: object, **kwargs: object) -> None:
    global _setting_up
    _setting_up += 1


def _set_up_ended(*_: object) -> None:
    global _setting_up
    _setting_up -= 1


def _step_began(optimizer: Any, args: object, kwargs: object) -> None:
    if _setting_up:
        return
    running = loop.current()
    if running.stepping and not is_inside_step(own_frames=1):
        running.optimizers_raised()
    running.optimizer_began(optimizer)


def _step_ended(optimizer: Any, args: object, kwargs: object) -> None:
    if not _setting_up:
        loop.current().optimizer_ended(optimizer)


def is_inside_step(own_frames: int) -> bool:
    """Return True if the caller runs inside the step of an optimizer or of what wraps it, by the stack: a
    step that raises calls no hook at its end. own_frames: those of the step that begins now."""
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
