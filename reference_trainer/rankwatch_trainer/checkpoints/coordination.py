"""Checkpoints of a distributed run: every rank gives its part, rank 0 writes, all resume from the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from rankwatch import DisabledRun, Run
from rankwatch_trainer.checkpoints.store import CheckpointStore
from rankwatch_trainer.config import TrainerConfig
from rankwatch_trainer.errors import CheckpointError, UsageError
from rankwatch_trainer.state import TrainingState
from rankwatch_trainer.world import World

_log = logging.getLogger(__name__)


class Checkpointing:
    """Saves and resumes as the configuration says; does nothing where it names no directory."""

    def __init__(
        self,
        config: TrainerConfig,
        world: World,
        run: Run | DisabledRun,
        write_file: Callable[[Path, bytes], None],
    ) -> None:
        self._config = config
        self._world = world
        self._run = run
        self._store: CheckpointStore | None = None
        self._last_step = -1  # of the last checkpoint asked for; the same on every rank
        if config.checkpoint_dir is not None:
            self._store = CheckpointStore(
                config.checkpoint_dir, run, keep=config.keep_checkpoints, write_file=write_file
            )

    def resume(self, state: TrainingState) -> None:
        """Puts the state back to the newest good checkpoint, where the configuration asks for it.

        Raises UsageError where it does not and there are checkpoints: a new run would mix with them.
        """
        if self._store is None:
            return
        if self._config.resume == "never":
            if self._store.steps():
                raise UsageError(
                    f"checkpoint_dir is {self._store.directory}, which holds checkpoints of an earlier run, "
                    "expected an empty directory, or --resume auto"
                )
            return
        step = self._agreed_step(self._store)
        if step is not None:
            state.restore(self._store.load(step), self._world)
            self._run.resumed(step)
            if self._world.rank == 0:
                _log.info("resumed from the checkpoint of step %d", step)

    def save_if_due(self, state: TrainingState) -> None:
        """Saves every `checkpoint_every` steps and after the last."""
        if state.step % self._config.checkpoint_every == 0 or state.step == self._config.steps:
            self.save(state)

    def save(self, state: TrainingState) -> None:
        """Saves now, unless this step was. A failure is logged and training goes on with the older one."""
        if self._store is None or self._last_step == state.step:
            return
        self._last_step = state.step
        with self._run.phase("checkpoint"):
            gathered = state.gather(self._world)
        if gathered is None:
            return
        try:
            self._store.save(state.step, gathered)
        except CheckpointError as error:
            _log.error("could not save the checkpoint of step %d, training goes on: %s", state.step, error)
        except OSError as error:
            reason = error.strerror or str(error)
            _log.error(
                "could not save the checkpoint of step %d in %s, training goes on: %s",
                *(state.step, self._store.directory, reason),
            )

    def _agreed_step(self, store: CheckpointStore) -> int | None:
        """The step rank 0 finds best, so that no rank resumes from another one."""
        choice = [store.newest_good() if self._world.rank == 0 else None]
        dist.broadcast_object_list(choice, src=0)
        return choice[0]
