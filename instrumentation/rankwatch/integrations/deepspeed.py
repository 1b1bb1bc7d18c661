"""DeepSpeed: the step of its engine, which holds one optimizer step for each group of parameters, or none.

A loop with `engine.backward(loss)` and `engine.step()` needs no line: `rankwatch run` finds its steps. What
only the engine knows is asked here: the loss of which `backward` makes another one by dividing it and by
scaling it, the gradient norm that ZeRO computes, and files that belong to one `save_checkpoint`.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from rankwatch.automatic import loop
from rankwatch.automatic.checkpoints import LOAD, SAVE
from rankwatch.automatic.patches import optimization
from rankwatch.automatic.patching import watch
from rankwatch.automatic.values import values
from rankwatch.conventions.vocabulary import Capability
from rankwatch.integrations.frameworks import watch_checkpoint


def patch(module: ModuleType) -> None:
    """Let every engine report."""
    engine = module.DeepSpeedEngine
    optimization.only_sets_up(engine, "__init__")
    watch(engine, "backward", began=_backward_began, ended=_backward_ended, shows=Capability.BACKWARD)
    watch(engine, "scale", began=_scales, ended=_scaled)
    watch(engine, "_take_model_step", began=_step_began, ended=_step_ended, shows=Capability.OPTIMIZER)
    watch_checkpoint(engine, "save_checkpoint", SAVE, _saved_to, shows=Capability.CHECKPOINTS)
    watch_checkpoint(engine, "load_checkpoint", LOAD, _loaded_from)
    watch(module, "clip_grad_norm_", ended=_clipped)


def patch_pipelines(module: ModuleType) -> None:
    """Let the engine for pipelines tell all stages the loss, which only the last one computes."""
    watch(module.PipelineEngine, "train_batch", began=_batch_began, ended=_batch_ended, shows=Capability.LOSS)


def _saved_to(_: Any, engine: Any, save_dir: Any, tag: Any = None, *rest: Any, **__: Any) -> Path:
    return Path(save_dir) / str(tag or f"global_step{engine.global_steps}")


def _loaded_from(result: Any, *_: Any, **__: Any) -> Any:
    """Return the folder of the file that the engine returns; None if it found no checkpoint."""
    return Path(result[0]).parent if result and result[0] else None


def _batch_began(*_: Any, **__: Any) -> bool:
    found, values.finds_loss = values.finds_loss, False
    return found


def _batch_ended(found: bool | None, loss: Any, error: BaseException | None) -> None:
    values.finds_loss = found is not False
    if found and error is None:
        values.told(loss)


def _backward_began(
    engine: Any, loss: Any, retain_graph: bool = False, scale_wrt_gas: bool = True, **_: Any
) -> bool:
    """Begin a backward pass. The engine reduces gradients after it; both are one phase."""
    parts = engine.gradient_accumulation_steps() if scale_wrt_gas else 1
    return loop.current().backward_began(loss if parts == 1 else loss.detach() / parts)


def _backward_ended(began: bool | None, result: object, error: BaseException | None) -> None:
    if began:
        optimization.backward_ended()


def _scales(engine: Any, loss: Any) -> Any:
    return loss


def _scaled(loss: Any, result: Any, error: BaseException | None) -> None:
    if error is None and result is not loss:
        values.scaled(loss, result)


def _step_began(engine: Any, *args: Any, **kwargs: Any) -> Any:
    running = loop.current()
    if running.stepping:
        running.optimizers_raised()  # it does not step inside of another optimizer
    running.optimizer_began(engine.optimizer, engine)
    return engine


def _step_ended(engine: Any, result: object, error: BaseException | None) -> None:
    if error is not None:
        loop.current().optimizers_raised()
        return
    norm = getattr(engine.optimizer, "_global_grad_norm", None)  # of ZeRO, before clipping
    if norm is not None:
        values.clips(norm)
    loop.current().optimizer_ended(engine.optimizer, engine)


def _clipped(token: None, norm: Any, error: BaseException | None) -> None:
    if error is None:
        values.clips(norm)
