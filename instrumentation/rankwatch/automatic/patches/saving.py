"""Files of checkpoints: torch.save and torch.load, safetensors, and what a script does around their writing.

What goes into memory (`io.BytesIO`) is no file. Many scripts save under a temporary name and rename what is
complete, so the path of a checkpoint follows fsync, rename and removal. `_holds_training_state` tells
checkpoints from other tensors that a script saves, such as predictions or a data set. It looks at types and
keys only, never at values, and never at more than a few hundred of them.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from rankwatch.automatic.checkpoints import LOAD, SAVE, Part, checkpoints
from rankwatch.automatic.patches.distributed_checkpoints import distributed_checkpoints
from rankwatch.automatic.patching import watch
from rankwatch.automatic.values import is_tensor
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions.vocabulary import Capability, CheckpointStage

_MOST_ITEMS = 256
_MOST_DEPTH = 3


class _File(NamedTuple):
    """A call that writes or reads a file."""

    target: Any
    """Path, or an open file."""
    position: int
    """Position at which the open file stood; 0 for a path."""
    began: float
    part: Part | None
    """None for a file that only belongs to an operation that has begun before, or that is read."""


def patch_torch(module: ModuleType) -> None:
    """Watch `torch.serialization`; `torch` holds the same functions. Without it there are no checkpoints
    whose files could be followed, so the functions of the standard library, which `pathlib` calls, are
    watched here, too."""
    shows = Capability.CHECKPOINTS
    if watch(module, "save", began=_save_began, ended=_save_ended, shows=shows, also=("torch",)):
        visibility.sees(shows)
    watch(module, "load", began=_load_began, ended=_load_ended, shows=shows, also=("torch",))
    watch(os, "fsync", began=_around_save, ended=_synchronized)
    for name in ("rename", "replace"):
        watch(os, name, began=_rename_began, ended=_renamed)
    watch(shutil, "rmtree", began=_around_save, ended=_removed)


def _save_began(obj: Any = None, f: Any = None, *rest: Any, **named: Any) -> _File | None:
    if not _is_file(f):
        return None
    if _holds_training_state(obj):
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
    if file is not None and error is None and _holds_training_state(result):
        size = bytes_of(file.target, file.position)
        checkpoints.took(LOAD, file.began, file.target, stage=CheckpointStage.READ, size=size)


def _is_file(target: object) -> bool:
    if isinstance(target, (str, os.PathLike)):
        return True
    return hasattr(target, "seek") and not isinstance(target, io.BytesIO)


def _position(target: Any) -> int:
    """Return the position of an open file; 0 of one that does not know it."""
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


# -- safetensors -------------------------------------------------------------------------------------------


def patch_safetensors(module: ModuleType) -> None:
    """Watch `safetensors.torch`. Its `save_model` and `load_model` call the functions that are watched."""
    shows = Capability.CHECKPOINTS
    watch(module, "save_file", began=_tensors_write_began, ended=_save_ended, shows=shows)
    watch(module, "load_file", began=_tensors_read_began, ended=_load_ended, shows=shows)


def _tensors_write_began(tensors: Any = None, filename: Any = None, *rest: Any, **named: Any) -> _File | None:
    if not _holds_training_state(tensors):
        return None
    part = checkpoints.begin(SAVE)
    return _File(filename, 0, part.began, part)


def _tensors_read_began(filename: Any = None, *rest: Any, **named: Any) -> _File | None:
    return _load_began(filename)


# -- around the files --------------------------------------------------------------------------------------


def _around_save(*_: object, **__: object) -> float | None:
    """Return the moment, if this is a part of a save that none of its other stages holds."""
    if distributed_checkpoints.working() or not checkpoints.joins(SAVE):
        return None
    return checkpoints.clock()


def _synchronized(began: float | None, result: object, error: BaseException | None) -> None:
    _took(began, CheckpointStage.FSYNC, error)


def _removed(began: float | None, result: object, error: BaseException | None) -> None:
    _took(began, CheckpointStage.DELETE, error)


def _rename_began(src: object, dst: object, **_: object) -> tuple[float | None, object, object]:
    return _around_save(), src, dst


def _renamed(
    rename: tuple[float | None, object, object] | None, result: object, error: BaseException | None
) -> None:
    if rename is not None:
        began, source, target = rename
        if error is None:
            checkpoints.renamed(source, target)
        _took(began, CheckpointStage.PUBLISH, error)


def _took(began: float | None, stage: CheckpointStage, error: BaseException | None) -> None:
    """Record what raised nothing. A missing file, say, fails no save: the script goes on or raises."""
    if began is not None and error is None:
        checkpoints.took(SAVE, began, None, stage=stage)


# -- training state ----------------------------------------------------------------------------------------


def _holds_training_state(value: object, depth: int = _MOST_DEPTH) -> bool:
    """Return True if the value is or contains a module, an optimizer, or the `state_dict` of one."""
    torch: Any = sys.modules.get("torch")
    if torch is None or depth < 0 or isinstance(value, torch.Tensor):
        return False
    if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
        return True
    if isinstance(value, dict):
        return _is_state_dict(value, torch.Tensor) or _any_holds(value.values(), depth)
    if isinstance(value, (list, tuple)):
        return _any_holds(value, depth)
    return _any_holds(getattr(value, "__dict__", {}).values(), min(depth, 1))


def _any_holds(values: Iterable[object], depth: int) -> bool:
    return any(_holds_training_state(each, depth - 1) for each in islice(values, _MOST_ITEMS))


def _is_state_dict(mapping: dict[Any, Any], tensor: type) -> bool:
    if hasattr(mapping, "_metadata"):  # `Module.state_dict` gives its result this attribute
        return True
    if "param_groups" in mapping and "state" in mapping:
        return True
    return any(
        isinstance(key, str) and isinstance(each, tensor) and _names_parameter(key)
        for key, each in islice(mapping.items(), _MOST_ITEMS)
    )


def _names_parameter(key: str) -> bool:
    """Return True for names of parameters such as `layers.0.norm` and `weight`."""
    return "." in key or key.endswith(("weight", "bias"))
