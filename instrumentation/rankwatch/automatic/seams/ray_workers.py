"""The workers of Ray Train: Ray starts them, also on other machines, so the driver gives an environment."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType


def targets() -> Mapping[str, Callable[[ModuleType], object]]:
    """The module of `RunConfig`."""
    return {"ray.train.v2.api.config": _patch}


def _patch(module: ModuleType) -> None:
    # The integration needs Ray, which is there now.
    importlib.import_module("rankwatch.integrations.ray_train").patch(module)
