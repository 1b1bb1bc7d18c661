"""Lightning: steps, loss, evaluations and checkpoints of `Trainer.fit`, for `lightning.pytorch` and
`pytorch_lightning`.

    from rankwatch.integrations.lightning import RankwatchCallback

    trainer = Trainer(max_steps=1000, callbacks=[RankwatchCallback()])

`rankwatch run` adds the callback by itself. A step is a training batch, or the batches of one
accumulation. It has the number of Lightning's `global_step` after it: the first is 1. The loss is
`outputs["loss"]` of `on_train_batch_end`, summed over the batches of the step. With manual optimization a
batch is one step, however many optimizers it has; if its `training_step` returns no loss, the losses are what
`backward` is given.
"""

from __future__ import annotations

import functools
import importlib
import math
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

from rankwatch.automatic import installing, reporting
from rankwatch.automatic.checkpoints import LOAD, SAVE, Part, checkpoints
from rankwatch.automatic.patches.saving import bytes_of
from rankwatch.automatic.patching import guarded, watch
from rankwatch.automatic.reporting import ReportedTraining
from rankwatch.automatic.values import amounts_of, values
from rankwatch.conventions.vocabulary import Capability
from rankwatch.integrations.frameworks import (
    begin_reporting,
    class_when_used,
    evaluation_began,
    evaluation_ended,
    require,
    watch_checkpoint,
)

if not any(find_spec(each) for each in ("pytorch_lightning", "lightning_fabric")):
    require("lightning", integration="lightning", name="Lightning")

NAMESPACES = ("lightning.pytorch", "pytorch_lightning")
"""Two packages with the same classes, which know nothing of each other."""
_NAME = "lightning"
_guarded = functools.partial(guarded, "follow the Trainer of Lightning")


# -- what is patched in either namespace -------------------------------------------------------------------


def patch_callbacks(module: ModuleType) -> None:
    """Add the callback to every `Trainer`, unless it has it already."""
    watch(module._CallbackConnector, "_attach_model_callbacks", ended=_attach, began=_trainer_of)


def patch_trainer(module: ModuleType) -> None:
    """Record the saves of checkpoints, from whatever callback or script they come."""
    watch(
        module.Trainer, "save_checkpoint", began=_save_began, ended=_save_ended, shows=Capability.CHECKPOINTS
    )


def patch_restoring(module: ModuleType) -> None:
    """Record the load of a checkpoint."""
    watch(module._CheckpointConnector, "resume_start", began=_load_began, ended=_load_ended)


def patch_fetching(module: ModuleType) -> None:
    """Record the wait for each training batch, whatever the loader is."""
    watch(module._TrainingEpochLoop, "_on_before_fetch", ended=lambda *_: reporting.fetch_began())
    watch(module._TrainingEpochLoop, "_on_after_fetch", began=lambda *_: reporting.fetch_ended())


def patch_fabric(module: ModuleType) -> None:
    """Record the checkpoints of Fabric. The rest of its loops is found as in any other loop."""
    fabric = module.Fabric
    watch(fabric, "save", began=_fabric_save_began, ended=_fabric_save_ended, shows=Capability.CHECKPOINTS)
    for name in ("load", "load_raw"):
        watch_checkpoint(fabric, name, LOAD, _fabric_path)


def _fabric_path(_: Any, fabric: Any, path: Any, *rest: Any, **__: Any) -> Any:
    return path


def _fabric_save_began(fabric: Any, path: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any, Part]:
    return fabric, path, checkpoints.begin(SAVE)


def _fabric_save_ended(save: tuple[Any, Any, Part] | None, result: Any, error: BaseException | None) -> None:
    if save is not None:
        fabric, path, part = save
        _add_place(part, path, written=fabric.is_global_zero and error is None)
        checkpoints.end(part, error=error)


def _add_place(part: Part, path: Any, *, written: bool) -> None:
    """Add path and size: Lightning saves into memory, and that into the file, so torch has told neither."""
    part.lies_at(path)
    if written and not part.operation.size:
        part.operation.size = bytes_of(path)


def _trainer_of(connector: Any) -> Any:
    return connector.trainer


def _attach(trainer: Any, result: Any, error: BaseException | None) -> None:
    if error is None and not any(isinstance(each, _Callback) for each in trainer.callbacks):
        callback = __getattr__("RankwatchCallback")()
        callback.added = False
        callbacks = [callback, *trainer.callbacks]
        trainer.callbacks = trainer._callback_connector._reorder_callbacks(callbacks)


class _Save(NamedTuple):
    trainer: Any
    path: Any
    part: Part


def _save_began(trainer: Any, filepath: Any, *args: Any, **kwargs: Any) -> _Save:
    part = checkpoints.begin(SAVE, lasting=_writes_later(trainer))
    part.operation.step = _steps_done(trainer)  # not the step that is open, should one be
    return _Save(trainer, filepath, part)


def _save_ended(save: _Save | None, result: Any, error: BaseException | None) -> None:
    if save is None:
        return
    trainer, path, part = save
    _add_place(part, path, written=trainer.is_global_zero and error is None and not part.lasting)
    checkpoints.end(part, error=error)
    if not part.lasting:
        return
    plugin = trainer.strategy.checkpoint_io
    if error is None and plugin._executor is not None:  # one thread writes, in order
        plugin._executor.submit(lambda: checkpoints.finish(part.operation, error=plugin._error))
    else:
        checkpoints.finish(part.operation, error=error)


def _writes_later(trainer: Any) -> bool:
    """Return True for `AsyncCheckpointIO`."""
    return hasattr(trainer.strategy.checkpoint_io, "_executor")


def _load_began(connector: Any, checkpoint_path: Any = None, *args: Any, **kwargs: Any) -> Any:
    if not checkpoint_path:
        return None
    part = checkpoints.begin(LOAD)
    part.lies_at(checkpoint_path)
    return connector, part


def _load_ended(token: tuple[Any, Part] | None, result: Any, error: BaseException | None) -> None:
    if token is None:
        return
    connector, part = token
    if error is None:
        part.operation.step = connector._loaded_checkpoint.get("global_step", part.operation.step)
    checkpoints.end(part, error=error)


def _steps_done(trainer: Any) -> int:
    """Return `global_step`; of a manual optimization, where it counts each optimizer, the batches."""
    module = trainer.lightning_module
    if module is None or module.automatic_optimization:
        return int(trainer.global_step)
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


def _after_updates(call: Callable[..., None]) -> Any:
    return importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(call)


def _target(trainer: Any) -> int:
    """Return steps that the training is to reach; 0 if that is not known."""
    if not trainer.lightning_module.automatic_optimization and trainer.max_steps > 0:
        return 0  # it counts each optimizer
    if any(len(getattr(each, "scheduling", ())) > 1 for each in trainer.callbacks):
        return 0  # Lightning's number is that for the accumulation of the first epoch
    steps = trainer.estimated_stepping_batches
    return int(steps) if math.isfinite(steps) else 0


# -- the callback ------------------------------------------------------------------------------------------


class _Callback:
    """Reports when Lightning trains: steps, loss, evaluations, checkpoints."""

    added = True
    """By the script. False if rankwatch has added it."""

    def __init__(self) -> None:
        self._forget()
        installing.install()

    def _forget(self) -> None:
        self._reported: ReportedTraining | None = None
        self._done = 0
        """Number of the last step."""
        self._optimizer_steps = 0
        """Lightning's own count after the last step."""
        self._updates = 0
        """Updates by optimizers since then, in a manual optimization that goes around Lightning's own."""
        self._hook: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"added": self.added}  # `ddp_spawn` sends the trainer with its callbacks to its ranks

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.added = state.get("added", True)
        self._forget()

    @_guarded
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        installing.install()
        if stage == "fit":
            self._reported = begin_reporting(_NAME, added=self.added)

    @_guarded
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._release()

    @_guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._done = _steps_done(trainer)
        self._optimizer_steps = trainer.global_step
        if self._reported is not None:
            if not pl_module.automatic_optimization:
                self._hook = _after_updates(self._updated)
            if trainer.ckpt_path and self._done:
                self._reported.run.resumed(self._done)
            if target := _target(trainer):
                self._reported.run.target(target)

    @_guarded
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        reported = self._reported
        if reported is not None:
            if not reported.step_open:
                reported.begin_step(self._done + 1)
            reported.work(**amounts_of(batch))

    @_guarded
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        reported = self._reported
        if reported is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is None:
            values.finds_loss = not pl_module.automatic_optimization  # from now on
        else:
            reported.add_loss(loss)
        if trainer.global_step != self._optimizer_steps or self._updates:
            self._optimizer_steps, self._updates = trainer.global_step, 0
            self._done += 1
            reported.end_step()

    @_guarded
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self._reported is not None and isinstance(exception, KeyboardInterrupt):
            self._reported.run.fail(exception)  # Lightning turns it into an exit with code 1
        self._release()

    def _updated(self, *_: Any) -> None:
        self._updates += 1

    def _release(self) -> None:
        reported, self._reported = self._reported, None
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if reported is not None:
            reported.release()

    on_sanity_check_start = on_validation_start = _guarded(evaluation_began)
    on_test_start = on_predict_start = on_validation_start
    on_sanity_check_end = on_validation_end = _guarded(evaluation_ended)
    on_test_end = on_predict_end = on_validation_end


def _bases() -> list[type]:
    return [importlib.import_module(f"{each}.callbacks").Callback for each in _namespaces()]


def _namespaces() -> list[str]:
    """Return those that the script uses; all that are installed if it has imported none so far."""
    loaded = [each for each in NAMESPACES if each in sys.modules]
    return loaded or [each for each in NAMESPACES if find_spec(each.partition(".")[0])]


__getattr__ = class_when_used(__name__, "RankwatchCallback", _Callback, _bases)
