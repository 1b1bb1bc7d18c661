"""Frameworks whose training loops tell more than the seams of torch: each is asked once it is imported."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType

_PATCHES = {
    "transformers.trainer": ("transformers", "patch"),
    "accelerate.accelerator": ("accelerate", "patch"),
    "accelerate.data_loader": ("accelerate", "patch_loaders"),
    "accelerate.optimizer": ("accelerate", "patch_optimizers"),
    "deepspeed.runtime.engine": ("deepspeed", "patch"),
    "ray.train.v2.api.config": ("ray_train", "patch"),
    "deepspeed.runtime.pipe.engine": ("deepspeed", "patch_pipelines"),
    "torchtitan.observability.structured_logger.structured_logging": ("torchtitan", "patch"),
    "lightning.fabric.fabric": ("lightning", "patch_fabric"),
    "lightning_fabric.fabric": ("lightning", "patch_fabric"),
    **{
        f"{namespace}.{module}": ("lightning", patch)
        for namespace in ("lightning.pytorch", "pytorch_lightning")
        for module, patch in {
            "trainer.connectors.callback_connector": "patch_callbacks",
            "trainer.connectors.checkpoint_connector": "patch_restoring",
            "trainer.trainer": "patch_trainer",
            "loops.training_epoch_loop": "patch_fetching",
        }.items()
    },
}
"""Module of a framework -> integration, and the function of it that patches the module."""


def targets() -> Mapping[str, Callable[[ModuleType], object]]:
    """The modules that integrations patch. The integration itself is imported after its framework."""
    return {name: _patch(*place) for name, place in _PATCHES.items()}


def _patch(integration: str, function: str) -> Callable[[ModuleType], object]:
    def patch(module: ModuleType) -> None:
        getattr(importlib.import_module(f"rankwatch.integrations.{integration}"), function)(module)

    return patch
