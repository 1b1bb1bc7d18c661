"""torch.save and torch.load: files of checkpoints. What goes into memory (`io.BytesIO`) is none."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from rankwatch.automatic.checkpoints import LOAD, SAVE, Part, checkpoints
from rankwatch.automatic.patching import watch
from rankwatch.automatic.training_state import holds_training_state, is_tensor
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions import Capability, CheckpointStage


class _File(NamedTuple):
    """A call that writes or reads a file."""

    target: Any
    """Path, or an open file."""
    position: int
    """Where the open file stood; 0 for a path."""
    began: float
    part: Part | None
    """None for a file that only belongs to an operation that has begun before, or that is read."""


def targets() -> Mapping[str, Callable[[ModuleType], object]]:
    """torch's module of serialization. `torch` holds the same functions."""
    return {"torch.serialization": _patch}


def _patch(module: ModuleType) -> None:
    shows = Capability.CHECKPOINTS
    if watch(module, "save", began=_save_began, ended=_save_ended, shows=shows, also=("torch",)):
        visibility.sees(shows)
    watch(module, "load", began=_load_began, ended=_load_ended, shows=shows, also=("torch",))


def _save_began(obj: Any = None, f: Any = None, *rest: Any, **named: Any) -> _File | None:
    if not _is_file(f):
        return None
    if holds_training_state(obj):
        position = _position(f)
        part = checkpoints.begin(SAVE)
        return _File(f, position, part.began, part)
    if checkpoints.joins(SAVE) and not is_tensor(obj):
        return _File(f, _position(f), checkpoints.clock(), None)
    return None


def _save_ended(file: _File | None, result: object, error: BaseException | None) -> None:
    if file is None:
        return
    size = 0 if error is not None else bytes_of(file.target, file.position)
    stage = CheckpointStage.WRITE
    if file.part is not None:
        file.part.operation.holds(file.target)
        checkpoints.end(file.part, stage=stage, size=size, error=error)
    else:
        checkpoints.took(SAVE, file.began, file.target, stage=stage, size=size, error=error)


def _load_began(f: Any = None, *rest: Any, **named: Any) -> _File | None:
    return _File(f, _position(f), checkpoints.clock(), None) if _is_file(f) else None


def _load_ended(file: _File | None, result: object, error: BaseException | None) -> None:
    # A load that fails shows no state; whether it was a checkpoint is unknown.
    if file is not None and error is None and holds_training_state(result):
        size = bytes_of(file.target, file.position)
        checkpoints.took(LOAD, file.began, file.target, stage=CheckpointStage.READ, size=size)


def _is_file(target: object) -> bool:
    if isinstance(target, (str, os.PathLike)):
        return True
    return hasattr(target, "seek") and not isinstance(target, io.BytesIO)


def _position(target: Any) -> int:
    """Of an open file. A file that does not know it gives 0."""
    tell = getattr(target, "tell", None)
    try:
        return int(tell()) if tell is not None else 0
    except (OSError, ValueError, TypeError):
        return 0


def bytes_of(target: Any, position: int = 0) -> int:
    """Size of the file at a path, or how far an open file has moved from a position; 0 if unknown."""
    if not isinstance(target, (str, os.PathLike)):
        return max(0, _position(target) - position)
    try:
        return Path(target).stat().st_size
    except OSError:
        return 0
