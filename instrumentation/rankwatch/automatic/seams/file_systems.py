"""What a script does with the files of a checkpoint around their writing: fsync, rename, removal of old ones.

Many scripts save under a temporary name and rename what is complete, so the path of a checkpoint follows it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from types import ModuleType

from rankwatch.automatic.checkpoints import SAVE, checkpoints
from rankwatch.automatic.patching import watch
from rankwatch.automatic.seams.distributed_checkpoints import distributed_checkpoints
from rankwatch.conventions import CheckpointStage


def targets() -> Mapping[str, Callable[[ModuleType], object]]:
    """What saves files: without it there are no checkpoints whose files could be followed."""
    return {"torch.serialization": _patch}


def _patch(module: ModuleType) -> None:
    """Watch the functions of the standard library, which `pathlib` calls, too."""
    watch(os, "fsync", began=_began, ended=_synchronized)
    for name in ("rename", "replace"):
        watch(os, name, began=_rename_began, ended=_renamed)
    watch(shutil, "rmtree", began=_began, ended=_removed)


def _began(*_: object, **__: object) -> float | None:
    """The moment, if this is a part of a save that none of its other stages holds."""
    if distributed_checkpoints.working() or not checkpoints.joins(SAVE):
        return None
    return checkpoints.clock()


def _synchronized(began: float | None, result: object, error: BaseException | None) -> None:
    _took(began, CheckpointStage.FSYNC, error)


def _removed(began: float | None, result: object, error: BaseException | None) -> None:
    _took(began, CheckpointStage.DELETE, error)


def _rename_began(src: object, dst: object, **_: object) -> tuple[float | None, object, object]:
    return _began(), src, dst


def _renamed(
    rename: tuple[float | None, object, object] | None, result: object, error: BaseException | None
) -> None:
    if rename is not None:
        began, source, target = rename
        if error is None:
            checkpoints.renamed(source, target)
        _took(began, CheckpointStage.PUBLISH, error)


def _took(began: float | None, stage: CheckpointStage, error: BaseException | None) -> None:
    """A file that is missing, for example, is no failure of the save: the script goes on or raises."""
    if began is not None and error is None:
        checkpoints.took(SAVE, began, None, stage=stage)
