"""Hugging Face `Trainer`: its steps, loss, gradient norm, evaluations and checkpoints.

    from rankwatch.integrations.transformers import RankwatchCallback

    trainer = Trainer(model=model, args=arguments, train_dataset=dataset, callbacks=[RankwatchCallback()])

`rankwatch run` adds the callback by itself. A step has the number that the Trainer's own logs and
checkpoint folders give it: the first is 1. The loss is what `training_step` returns, summed over the
batches of the step: the number that the Trainer averages for its logs, without its filter for NaN.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from rankwatch.automatic import installing, reporting
from rankwatch.automatic.checkpoints import LOAD, SAVE, Part, checkpoints
from rankwatch.automatic.patching import Function, guarded, replace, watch
from rankwatch.automatic.reporting import ReportedTraining
from rankwatch.automatic.values import amounts_of
from rankwatch.conventions.vocabulary import Capability
from rankwatch.integrations.frameworks import (
    begin_reporting,
    checkpoint_ended,
    class_when_used,
    evaluation_began,
    evaluation_ended,
    require,
    watch_checkpoint,
)

require("transformers", integration="transformers", name="Hugging Face Transformers")

_NAME = "transformers"
_guarded = functools.partial(guarded, "follow the Trainer of Transformers")


def patch(module: ModuleType) -> None:
    """Let every `Trainer` of the module `transformers.trainer` report."""
    trainer = module.Trainer
    watch(trainer, "train", began=_train_began, ended=_train_ended, shows=Capability.STEPS)
    _watch_calls(trainer)


def _watch_calls(kind: type) -> None:
    """Watch what the training loop calls on this class of Trainer, which may override it."""
    watch(kind, "_inner_training_loop", ended=_attempt_ended)
    watch(kind, "training_step", began=_batch_began, ended=_batch_ended, shows=Capability.LOSS)
    replace(kind, "get_batch_samples", _timing_fetches, shows=Capability.DATA_WAIT)
    for name in ("evaluate", "predict", "evaluation_loop"):
        watch(kind, name, began=evaluation_began, ended=evaluation_ended, shows=Capability.EVALUATION)
    for name, path in (("_save_checkpoint", _saved_to), ("save_model", _exported_to)):
        watch_checkpoint(kind, name, SAVE, path, shows=Capability.CHECKPOINTS)
    for name in ("_load_from_checkpoint", "_load_optimizer_and_scheduler"):
        watch(kind, name, began=_load_began, ended=checkpoint_ended)


class _Training:
    """One call of `Trainer.train` that has called `on_train_begin`. It holds no state between two of them."""

    def __init__(self, reported: ReportedTraining, trainer: Any, state: Any) -> None:
        self.reported = reported
        self.trainer = trainer
        self.inside = False
        """True inside `training_step`. An override of it calls the one that it overrides."""
        self.skips = False
        """True until the first batches after a resume are there: the wait for them includes those skipped."""
        self.replicas = _replicas(trainer)
        """Ranks that work on the same batch."""
        if state.max_steps > 0:
            self.reported.run.target(state.max_steps)
        if state.global_step > 0:
            self.reported.run.resumed(state.global_step)
            self.skips = True

    def abandon_step(self) -> None:
        """Abandon the step: an exception has ended it, or the Trainer stops before its optimizer."""
        self.inside = False
        self.reported.end_step(failed=True)


_trainer: Any = None
"""The Trainer whose `train` is under way: the outermost one."""
_training: _Training | None = None
"""Its training, if it reports. The callback holds nothing: a hyperparameter search pickles it."""


# -- the callback ------------------------------------------------------------------------------------------


class _Callback:
    """Reports when a Trainer trains: steps, loss, evaluations, checkpoints."""

    added = True
    """By the script. False if rankwatch has added it."""

    def __init__(self) -> None:
        installing.install()

    @_guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin before the Trainer fetches the first batch. After out of memory it begins once more."""
        global _training
        if _trainer is not None and state is _trainer.state:
            found = begin_reporting(_NAME, added=self.added)
            _training = None if found is None else _Training(found, _trainer, state)

    @_guarded
    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if _training is not None:
            _training.reported.begin_step(state.global_step + 1)

    @_guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if _training is not None:
            _training.reported.end_step()


def _bases() -> list[type]:
    return [importlib.import_module("transformers.trainer_callback").TrainerCallback]


__getattr__ = class_when_used(__name__, "RankwatchCallback", _Callback, _bases)


# -- what the Trainer calls --------------------------------------------------------------------------------


def _train_began(trainer: Any, *args: Any, **kwargs: Any) -> Any:
    global _trainer
    if _trainer is not None:  # a Trainer inside another one's training
        return None
    _watch_calls(type(trainer))
    handler = trainer.callback_handler
    if not any(isinstance(each, _Callback) for each in handler.callbacks):
        callback = __getattr__("RankwatchCallback")()
        callback.added = False
        handler.callbacks.insert(0, callback)  # before others, whose time belongs to no step
    _trainer = trainer
    return trainer


def _train_ended(trainer: Any, result: Any, error: BaseException | None) -> None:
    global _trainer
    if trainer is not None:
        _trainer = None
        _release()


def _release() -> None:
    global _training
    training, _training = _training, None
    if training is not None:
        training.reported.release()


def _attempt_ended(token: Any, result: Any, error: BaseException | None) -> None:
    if _training is not None and error is not None:  # after out of memory it is called again
        _training.abandon_step()


def _batch_began(trainer: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> _Training | None:
    training = _training
    if training is None or training.inside or trainer is not training.trainer:
        return None
    if not training.reported.step_open:  # a loop of its own, which calls no `on_step_begin`
        _release()
        return None
    training.inside = True
    training.reported.work(**{unit: each / training.replicas for unit, each in amounts_of(inputs).items()})
    return training


def _batch_ended(training: _Training | None, result: Any, error: BaseException | None) -> None:
    if training is not None:
        training.inside = False
        if error is None:
            training.reported.add_loss(result)


def _timing_fetches(original: Function, _: object) -> Function:
    def get_batch_samples(self: Any, epoch_iterator: Any, *args: Any, **kwargs: Any) -> Any:
        training = _training
        if training is None or isinstance(epoch_iterator, _Fetches):
            return original(self, epoch_iterator, *args, **kwargs)
        result = original(self, _Fetches(epoch_iterator), *args, **kwargs)
        if training.skips:
            training.skips = False
            _forget_waits(training)
        return result

    return get_batch_samples


@_guarded
def _forget_waits(training: _Training) -> None:
    training.reported.forget_waits()


class _Fetches(Iterator[Any]):
    """The Trainer's iterator over batches; each `next` is a wait for data, whatever the loader is."""

    _began = staticmethod(_guarded(reporting.fetch_began))
    _ended = staticmethod(_guarded(reporting.fetch_ended))

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __next__(self) -> Any:
        self._began()
        try:
            return next(self._batches)
        finally:
            self._ended()


def _replicas(trainer: Any) -> int:
    sizes = (getattr(trainer, f"get_{each}_size", _one)() for each in ("tp", "cp", "sp"))
    return functools.reduce(lambda product, size: product * size, sizes, 1)


def _one() -> int:
    return 1


# -- evaluations and checkpoints, also those that a script asks for between two trainings --------------------


def _saved_to(_: Any, trainer: Any, model: Any, trial: Any = None, **__: Any) -> Path:
    return Path(trainer._get_output_dir(trial=trial)) / f"checkpoint-{trainer.state.global_step}"


def _exported_to(_: Any, trainer: Any, output_dir: Any = None, *rest: Any, **__: Any) -> Any:
    return output_dir or trainer.args.output_dir


def _load_began(trainer: Any, checkpoint: Any, *args: Any, **kwargs: Any) -> Part | None:
    if checkpoint is None:
        return None
    part = checkpoints.begin(LOAD)
    part.lies_at(checkpoint)
    part.operation.step = _step_of(checkpoint, part.operation.step)
    return part


def _step_of(folder: Any, otherwise: int) -> int:
    """Return the step in the name of a folder `checkpoint-500`."""
    digits = str(folder).rstrip("/").rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 18 else otherwise
