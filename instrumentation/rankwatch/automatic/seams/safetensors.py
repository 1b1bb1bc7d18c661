"""safetensors: files of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from rankwatch.automatic.checkpoints import LOAD, SAVE, Part, checkpoints
from rankwatch.automatic.patching import watch
from rankwatch.automatic.seams.saving import bytes_of
from rankwatch.automatic.training_state import holds_training_state
from rankwatch.conventions import Capability, CheckpointStage

_Writing = tuple[Part, Any]
_Reading = tuple[float, Any]


def targets() -> Mapping[str, Callable[[ModuleType], object]]:
    """The functions for PyTorch. `save_model` and `load_model` call those that are watched."""
    return {"safetensors.torch": _patch}


def _patch(module: ModuleType) -> None:
    shows = Capability.CHECKPOINTS
    watch(module, "save_file", began=_write_began, ended=_write_ended, shows=shows)
    watch(module, "load_file", began=_read_began, ended=_read_ended, shows=shows)


def _write_began(tensors: Any = None, filename: Any = None, *rest: Any, **named: Any) -> _Writing | None:
    return (checkpoints.begin(SAVE), filename) if holds_training_state(tensors) else None


def _write_ended(writing: _Writing | None, result: object, error: BaseException | None) -> None:
    if writing is not None:
        part, filename = writing
        size = 0 if error is not None else bytes_of(filename)
        part.operation.holds(filename)
        checkpoints.end(part, stage=CheckpointStage.WRITE, size=size, error=error)


def _read_began(filename: Any = None, *rest: Any, **named: Any) -> _Reading:
    return checkpoints.clock(), filename


def _read_ended(reading: _Reading, result: object, error: BaseException | None) -> None:
    if error is None and holds_training_state(result):
        began, filename = reading
        checkpoints.took(LOAD, began, filename, stage=CheckpointStage.READ, size=bytes_of(filename))
