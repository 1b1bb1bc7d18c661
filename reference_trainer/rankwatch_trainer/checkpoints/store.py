"""A directory of checkpoints, `step-00000050/` each, that appear whole or not at all."""

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

from rankwatch import DisabledRun, Run
from rankwatch_trainer.checkpoints import manifest
from rankwatch_trainer.errors import CheckpointError

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
        """Steps of the checkpoints in the directory, good or not, the newest first."""
        names = [path.name for path in self.directory.iterdir()] if self.directory.is_dir() else []
        found = [match for name in names if (match := _PUBLISHED.fullmatch(name))]
        return sorted((int(match[1]) for match in found), reverse=True)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Saves, verifies, and deletes what is too old.

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
        """Reads a checkpoint again. Raises CheckpointError where it is not what was written."""
        with self._run.checkpoint("verify", step=step, path=self._path(step)) as operation:
            with operation.stage("read"):
                contents = manifest.read_verified(self._path(step))
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
        """The state saved at a step. Raises CheckpointError where it is damaged."""
        with self._run.checkpoint("load", step=step, path=self._path(step)) as operation:
            with operation.stage("read"):
                contents = manifest.read_verified(self._path(step))
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
        (partial / manifest.NAME).write_bytes(manifest.manifest_of(step, files))

    def _publish(self, partial: Path, step: int) -> None:
        if self._path(step).exists():
            shutil.rmtree(self._path(step))  # it was passed over on resume, else it would be the present one
        rename_durably(partial, self._path(step))

    def _delete_before(self, step: int) -> None:
        older = [each for each in self.steps() if each < step]
        for each in older[self._keep - 1 :]:
            shutil.rmtree(self._path(each), ignore_errors=True)


def fsync(path: Path) -> None:
    """Waits until the disk holds the file's content, or the directory's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_durably(source: Path, target: Path) -> None:
    """Renames within a directory; afterwards target is whole or absent, whatever happens."""
    source.rename(target)
    fsync(target.parent)


def _serialize(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _deserialize(contents: dict[str, bytes], path: Path) -> dict[str, Any]:
    """Tensors and plain values only: a checkpoint cannot make this process run code."""
    try:
        state: dict[str, Any] = torch.load(
            io.BytesIO(contents[_STATE]), map_location="cpu", weights_only=True
        )
    except (KeyError, RuntimeError, pickle.UnpicklingError) as cause:
        raise CheckpointError(f"could not read {path / _STATE}: it is no state of a trainer") from cause
    return state
