"""`install`: puts all seams in place, or has them put in place as soon as their libraries are imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

from rankwatch.automatic.imports import when_imported
from rankwatch.automatic.visibility import visibility

Targets = Mapping[str, Callable[[ModuleType], object]]
"""Name of a leaf module -> function that patches it."""

_stop: Callable[[], None] | None = None
"""Stops the wait for libraries that are not imported yet. None before `install`."""


def install() -> None:
    """Put all seams in place; again, it does nothing. Integrations that are used by hand call it too."""
    global _stop
    if _stop is None:
        pairs = [pair for targets in _seams() for pair in _pairs(targets)]
        _stop = when_imported(pairs, _failed)


def install_in_child() -> None:
    """The same for a child of multiprocessing, as soon as it joins a process group: then it is a rank."""
    from rankwatch.automatic.seams import process_groups

    when_imported(process_groups.targets(first=install), _failed)


def stop_waiting() -> None:
    """Leave libraries alone that are imported from now on."""
    if _stop is not None:
        _stop()


def _seams() -> tuple[Callable[[], Targets], ...]:
    """Every seam, and every integration that attaches by itself."""
    from rankwatch.automatic.seams import (
        autograd,
        clipping,
        data_loading,
        distributed_checkpoints,
        file_systems,
        frameworks,
        gradient_scaling,
        loss_scaling,
        modules,
        optimizers,
        process_groups,
        replicas,
        safetensors,
        saving,
    )

    return (
        process_groups.targets,
        data_loading.targets,
        modules.targets,
        autograd.targets,
        optimizers.targets,
        gradient_scaling.targets,
        loss_scaling.targets,
        clipping.targets,
        replicas.targets,
        saving.targets,
        distributed_checkpoints.targets,
        safetensors.targets,
        file_systems.targets,
        frameworks.targets,
    )


def _pairs(targets: Callable[[], Targets]) -> list[tuple[str, Callable[[ModuleType], object]]]:
    try:
        return list(targets().items())
    except Exception as error:  # noqa: BLE001 - the other seams must come into place
        _failed(targets.__module__, error)
        return []


def _failed(name: str, error: Exception) -> None:
    visibility.failed(f"patch {name}", error)
