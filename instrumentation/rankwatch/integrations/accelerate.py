"""Accelerate: `save_state` as one checkpoint, batches that rank 0 reads for all, and a tracker.

A loop with `Accelerator` needs no line: `rankwatch run` finds its steps at the optimizer, and this module
adds what only Accelerate knows. `Accelerator.backward` divides the loss by the number of batches of a
step, so the recorded sum is their mean. By hand it is one line, and what the loop logs is recorded too:

    from rankwatch.integrations.accelerate import RankwatchTracker

    accelerator = Accelerator(log_with=[RankwatchTracker()])
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

from rankwatch.automatic import installing, loop, recording
from rankwatch.automatic.checkpoints import LOAD, SAVE
from rankwatch.automatic.patches import data_loading
from rankwatch.automatic.patching import guarded, watch
from rankwatch.conventions.vocabulary import Capability
from rankwatch.integrations.frameworks import class_when_used, require, watch_checkpoint
from rankwatch.starting import run_of_script

require("accelerate", integration="accelerate", name="Accelerate")

_guarded = functools.partial(guarded, "follow Accelerate")


def patch(module: ModuleType) -> None:
    """Let every `Accelerator` report."""
    accelerator = module.Accelerator
    watch_checkpoint(accelerator, "save_state", SAVE, _saved_to, shows=Capability.CHECKPOINTS)
    watch_checkpoint(accelerator, "load_state", LOAD, _loaded_from)


def _saved_to(folder: Any, *_: Any, **__: Any) -> Any:
    return folder


def _loaded_from(_: Any, accelerator: Any, input_dir: Any = None, *rest: Any, **__: Any) -> Any:
    return input_dir  # without one it is the newest, which its files tell


def patch_loaders(module: ModuleType) -> None:
    """Let the wait for the first batch of an epoch begin where ranks synchronize their random states. Record
    the wait of the ranks that get their batches from rank 0: they have no data loader of their own."""
    watch(module, "synchronize_rng_states", began=lambda *_, **__: data_loading.loader_asked())
    watch(module.DataLoaderDispatcher, "_fetch_batches", began=_fetch_began, ended=_fetch_ended)


def patch_optimizers(module: ModuleType) -> None:
    """Let a step of an optimizer begin with what Accelerate does before it. Optimizers of other engines, such
    as DeepSpeed, have a `step` of their own."""
    watch(module.AcceleratedOptimizer, "step", began=_step_began, ended=_step_ended)


def _step_began(accelerated: Any, *args: Any, **kwargs: Any) -> Any:
    if not accelerated.gradient_state.sync_gradients:
        return None  # it will not step: gradients are accumulated
    loop.current().optimizer_began(accelerated.optimizer, accelerated)
    return accelerated


def _step_ended(accelerated: Any, result: Any, error: BaseException | None) -> None:
    if accelerated is None:
        return
    if error is None:
        loop.current().optimizer_ended(accelerated.optimizer, accelerated)
    else:
        loop.current().optimizers_raised()


def _fetch_began(loader: Any, iterator: Any) -> tuple[float, Any]:
    return loop.current().fetch_began(), loader


def _fetch_ended(token: tuple[float, Any], result: Any, error: BaseException | None) -> None:
    began, loader = token
    if error is None and result[1][1]:
        error = StopIteration()
    # Rank 0 has the batches of all ranks here, the others have none, so the work of one rank is not known.
    loop.current().fetch_ended(began, loader, None, error)


class _Tracker:
    """Records the numbers that a loop gives to `Accelerator.log`, on rank 0 only."""

    name = "rankwatch"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, **_: Any) -> None:
        super().__init__()
        installing.install()

    @property
    def tracker(self) -> Any:
        """The run that it records into: that of the script, if it has started one."""
        return run_of_script() or recording.opened()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Do nothing: a run of rankwatch has no hyperparameters."""

    @_guarded
    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Record each number under its name, in the step that is open or was the last."""
        run = self.tracker
        for name, value in values.items():
            if isinstance(value, int | float) or getattr(value, "numel", int)() == 1:
                run.scalar(name, value)

    def finish(self) -> None:
        """Do nothing: only rank 0 is told the end of training. The run ends on each rank with its process."""


def _bases() -> list[type]:
    return [importlib.import_module("accelerate.tracking").GeneralTracker]


__getattr__ = class_when_used(__name__, "RankwatchTracker", _Tracker, _bases)
