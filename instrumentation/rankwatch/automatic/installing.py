"""`install`: patches libraries, as soon as each is imported."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rankwatch.automatic import recording
from rankwatch.automatic.imports import when_imported
from rankwatch.automatic.patching import watch
from rankwatch.automatic.visibility import visibility

_PROCESS_GROUPS = "torch.distributed.distributed_c10d"
_CHECKPOINTS = "torch.distributed.checkpoint"
_PATCHES = {
    _PROCESS_GROUPS: ("automatic.installing", "patch_process_groups"),
    "torch.utils.data.dataloader": ("automatic.patches.data_loading", "patch"),
    "torchdata.stateful_dataloader.stateful_dataloader": ("automatic.patches.data_loading", "patch"),
    "torch.compiler": ("automatic.patches.modules", "patch"),
    "torch._tensor": ("automatic.patches.optimization", "patch_tensor"),
    "torch.autograd": ("automatic.patches.optimization", "patch_autograd"),
    "torch.optim.optimizer": ("automatic.patches.optimization", "patch_optimizers"),
    "torch.amp.grad_scaler": ("automatic.patches.optimization", "patch_scaler"),
    "torch.nn.utils.clip_grad": ("automatic.patches.optimization", "patch_clipping"),
    "torch.distributed.fsdp.sharded_grad_scaler": ("automatic.patches.optimization", "patch_sharded_scaler"),
    "torch.distributed.fsdp.fully_sharded_data_parallel": (
        "automatic.patches.optimization",
        "patch_fsdp_clipping",
    ),
    "torch.nn.parallel.distributed": ("automatic.recording", "patch_replicas"),
    "torch.serialization": ("automatic.patches.saving", "patch_torch"),
    "safetensors.torch": ("automatic.patches.saving", "patch_safetensors"),
    f"{_CHECKPOINTS}.state_dict": ("automatic.patches.optimization", "patch_state_loading"),
    f"{_CHECKPOINTS}.logger": ("automatic.patches.distributed_checkpoints", "patch_logger"),
    f"{_CHECKPOINTS}.filesystem": ("automatic.patches.distributed_checkpoints", "patch_files"),
    f"{_CHECKPOINTS}.state_dict_saver": ("automatic.patches.distributed_checkpoints", "patch_reply"),
    f"{_CHECKPOINTS}._async_thread_executor": ("automatic.patches.distributed_checkpoints", "patch_executor"),
    f"{_CHECKPOINTS}._async_process_executor": (
        "automatic.patches.distributed_checkpoints",
        "patch_executor",
    ),
    "transformers.trainer": ("integrations.transformers", "patch"),
    "accelerate.accelerator": ("integrations.accelerate", "patch"),
    "accelerate.data_loader": ("integrations.accelerate", "patch_loaders"),
    "accelerate.optimizer": ("integrations.accelerate", "patch_optimizers"),
    "deepspeed.runtime.engine": ("integrations.deepspeed", "patch"),
    "ray.train.v2.api.config": ("integrations.ray_train", "patch"),
    "deepspeed.runtime.pipe.engine": ("integrations.deepspeed", "patch_pipelines"),
    "torchtitan.observability.structured_logger.structured_logging": ("integrations.torchtitan", "patch"),
    "lightning.fabric.fabric": ("integrations.lightning", "patch_fabric"),
    "lightning_fabric.fabric": ("integrations.lightning", "patch_fabric"),
    **{
        f"{namespace}.{module}": ("integrations.lightning", patch)
        for namespace in ("lightning.pytorch", "pytorch_lightning")
        for module, patch in {
            "trainer.connectors.callback_connector": "patch_callbacks",
            "trainer.connectors.checkpoint_connector": "patch_restoring",
            "trainer.trainer": "patch_trainer",
            "loops.training_epoch_loop": "patch_fetching",
        }.items()
    },
}
"""Module of a library -> module of rankwatch, and the function of it that patches that one. It is imported
once the library is."""

_installed = False


def install() -> None:
    """Patch all libraries; again, it does nothing. Integrations that are used by hand call it too."""
    global _installed
    if not _installed:
        _installed = True
        when_imported(patches(), _failed)


def install_in_child() -> None:
    """Install in a child of multiprocessing, as soon as it joins a process group: then it is a rank."""
    when_imported({_PROCESS_GROUPS: functools.partial(patch_process_groups, before=install)}, _failed)


def patches() -> dict[str, Callable[[ModuleType], object]]:
    """Name of each module that is patched -> function that patches it."""
    return {name: functools.partial(_patch, *place) for name, place in _PATCHES.items()}


def _patch(patching: str, function: str, module: ModuleType) -> None:
    getattr(importlib.import_module(f"rankwatch.{patching}"), function)(module)


def patch_process_groups(module: ModuleType, before: Callable[[], object] | None = None) -> None:
    """Watch the function that joins a process group: the first one shows that this process is a rank, before
    anything is trained. before: called before the process joins one."""

    def joins(*args: Any, **kwargs: Any) -> None:
        if before is not None:
            before()
        # Before the group is there: collectives and the flight recorder are watched from its start.
        recording.opened()

    watch(module, "init_process_group", began=joins, also=("torch.distributed",))


def _failed(name: str, error: Exception) -> None:
    visibility.failed(f"patch {name}", error)
