"""A directory of checkpoints, `step-00000050/` each, that appear whole and verified, or not at all.

Every rank gives its part, rank 0 writes, and all resume from the same.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rankwatch import DisabledRun, Run
from rankwatch_checkpoints import CheckpointError as ManifestError
from rankwatch_checkpoints import Manifest, digest_of
from rankwatch_checkpoints.manifest import NAME, as_bytes, parse
from rankwatch_trainer.config import TrainerConfig
from rankwatch_trainer.errors import CheckpointError, UsageError
from rankwatch_trainer.state import TrainingState
from rankwatch_trainer.world import World

_log = logging.getLogger(__name__)

_STATE = "state.pt"
_PUBLISHED = re.compile(r"step-(\d{8,})")
_PARTIAL = ".partial"


class CheckpointStore:
    """Saves, verifies, finds and reads checkpoints; one process at a time may save.

    A checkpoint is written under a temporary name, synced, renamed, and verified by reading it again.
    Only then are older ones deleted, except the newest `keep - 1` of them.
    """

    def __init__(
        self, directory: Path, run: Run | DisabledRun, *, keep: int, write_file: Callable[[Path, bytes], None]
    ) -> None:
        self.directory = directory
        self._run = run
        self._keep = keep
        self._write_file = write_file

    def steps(self) -> list[int]:
        """Return steps of the checkpoints in the directory, good or not, the newest first."""
        names = [path.name for path in self.directory.iterdir()] if self.directory.is_dir() else []
        found = [match for name in names if (match := _PUBLISHED.fullmatch(name))]
        return sorted((int(match[1]) for match in found), reverse=True)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save, verify, and delete what is too old.

        Raises OSError where it could not be written, CheckpointError where what was written is damaged;
        the older checkpoints are then still there.
        """
        with self._run.checkpoint("save", step=step, path=self._path(step)) as operation:
            with operation.stage("serialize"):
                content = _serialize(state)
            operation.bytes = len(content)
            partial = self._path(step).with_suffix(_PARTIAL)
            try:
                with operation.stage("write"):
                    self._write(partial, {_STATE: content}, step)
                with operation.stage("fsync"):
                    for path in (*partial.iterdir(), partial):
                        fsync(path)
                with operation.stage("publish"):
                    self._publish(partial, step)
            finally:
                shutil.rmtree(partial, ignore_errors=True)  # there only after a failure
        self.verify(step)
        self._delete_before(step)

    def verify(self, step: int) -> None:
        """Read a checkpoint again. Raises CheckpointError where it is not what was written."""
        with self._run.checkpoint("verify", step=step, path=self._path(step)) as operation:
            with operation.stage("read"):
                contents = _read_verified(self._path(step))
            operation.bytes = sum(map(len, contents.values()))

    def newest_good(self) -> int | None:
        """Step of the newest checkpoint that verifies; newer ones that do not are logged."""
        for step in self.steps():
            try:
                self.verify(step)
            except CheckpointError as error:
                _log.warning("passed over checkpoint of step %d: %s", step, error)
            else:
                return step
        return None

    def load(self, step: int) -> dict[str, Any]:
        """Return the state saved at a step. Raises CheckpointError where it is damaged."""
        with self._run.checkpoint("load", step=step, path=self._path(step)) as operation:
            with operation.stage("read"):
                contents = _read_verified(self._path(step))
            operation.bytes = sum(map(len, contents.values()))
            with operation.stage("deserialize"):
                return _deserialize(contents, self._path(step))

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:08d}"

    def _write(self, partial: Path, files: dict[str, bytes], step: int) -> None:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, content in files.items():
            self._write_file(partial / name, content)
        (partial / NAME).write_bytes(_manifest_of(step, files))

    def _publish(self, partial: Path, step: int) -> None:
        if self._path(step).exists():
            shutil.rmtree(self._path(step))  # it was passed over on resume, else it would be the present one
        rename_durably(partial, self._path(step))

    def _delete_before(self, step: int) -> None:
        older = [each for each in self.steps() if each < step]
        for each in older[self._keep - 1 :]:
            shutil.rmtree(self._path(each), ignore_errors=True)


def fsync(path: Path) -> None:
    """Wait until the disk holds the file's content, or the directory's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_durably(source: Path, target: Path) -> None:
    """Rename within a directory; afterwards target is whole or absent, whatever happens."""
    source.rename(target)
    fsync(target.parent)


def _serialize(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _deserialize(contents: dict[str, bytes], path: Path) -> dict[str, Any]:
    """Load tensors and plain values only: a checkpoint cannot make this process run code."""
    try:
        state: dict[str, Any] = torch.load(
            io.BytesIO(contents[_STATE]), map_location="cpu", weights_only=True
        )
    except (KeyError, RuntimeError, pickle.UnpicklingError) as cause:
        raise CheckpointError(f"could not read {path / _STATE}: it is no state of a trainer") from cause
    return state


def _manifest_of(step: int, files: dict[str, bytes]) -> bytes:
    """Return the manifest of these contents, as they are in memory, before a disk has touched them."""
    digests = {name: digest_of(content) for name, content in files.items()}
    return as_bytes(Manifest(step, "sha256", digests))


def _read_verified(directory: Path) -> dict[str, bytes]:
    """Return the contents of a checkpoint's files, each held against the manifest.

    Raises CheckpointError for whatever is missing, unreadable or different.
    """
    try:
        manifest = parse(_read_file(directory / NAME), directory / NAME)
    except ManifestError as cause:
        raise CheckpointError(str(cause)) from cause
    contents: dict[str, bytes] = {}
    for name, expected in manifest.files.items():
        content = contents[name] = _read_file(directory / name)
        if len(content) != expected.bytes:
            problem = f"it has {len(content)} bytes, expected {expected.bytes}"
            raise CheckpointError(f"could not verify {directory / name}: {problem}")
        digest = digest_of(content, manifest.algorithm).digest
        if digest != expected.digest:
            problem = f"its SHA-256 is {digest[:12]}..., expected {expected.digest[:12]}..."
            raise CheckpointError(f"could not verify {directory / name}: {problem}")
    return contents


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as cause:
        raise CheckpointError(f"could not read {path}: {cause.strerror}") from cause


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
        """Put the state back to the newest good checkpoint, where the configuration asks for it.

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
        """Save every `checkpoint_every` steps and after the last."""
        if state.step % self._config.checkpoint_every == 0 or state.step == self._config.steps:
            self.save(state)

    def save(self, state: TrainingState) -> None:
        """Save now, unless this step was. A failure is logged and training goes on with the older one."""
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
        """Return the step rank 0 finds best, so that no rank resumes from another one."""
        choice = [store.newest_good() if self._world.rank == 0 else None]
        dist.broadcast_object_list(choice, src=0)
        return choice[0]
