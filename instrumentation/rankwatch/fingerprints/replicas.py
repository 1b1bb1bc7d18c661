"""Which parameters must be the same on which ranks, bit by bit.

DistributedDataParallel adds up gradients over its process group, so all of its ranks apply the same update.
FSDP2 on a mesh of two dimensions (HSDP) does so over the first one: ranks that hold the same shard are equal.
A DTensor that is replicated without that sum, as in tensor parallelism, is left out: each rank computes its
gradient by itself, and two kernels may round differently.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from rankwatch.conventions import Unseen
from rankwatch.identity import Identity
from rankwatch.members import members_text

_LOCAL_HOOKS = ("localsgd", "local_sgd")
"""In the names of communication hooks of DDP after which the ranks differ on purpose."""
_DATA_PARALLEL = "dp"


class Replicas(NamedTuple):
    """Tensors of this rank that other ranks hold, too."""

    members: str
    """All ranks that hold them; see `rankwatch.members`."""
    names: list[str]
    tensors: list[Any]


def of_modules(modules: Iterable[Any]) -> tuple[list[Replicas], Unseen | None]:
    """What is replicated in these modules, by the ranks that hold it; else why nothing is."""
    found: dict[str, Replicas] = {}
    why: set[Unseen | None] = set()
    for module in modules:
        for name, tensor, ranks, reason in _parameters(module):
            why.add(reason)
            if reason is None:
                members = members_text(ranks)
                part = found.setdefault(members, Replicas(members, [], []))
                part.names.append(name)
                part.tensors.append(tensor)
    if found:
        return list(found.values()), None
    return [], next((each for each in why if each is not None), Unseen.NOT_CALLED)


def of_tensors(named: Iterable[tuple[str, Any]], identity: Identity) -> tuple[list[Replicas], Unseen | None]:
    """Tensors of which a script says that they are the same on all ranks with the same position in all
    parallel dimensions but the data-parallel ones."""
    named = [(name, each) for name, each in named if each.numel()]
    if not named:
        return [], Unseen.NOT_CALLED
    if any(_is_flat_shard(each) or hasattr(each, "placements") for _, each in named):
        return [], Unseen.SHARDED
    others = {
        name: index
        for name, (index, size) in identity.coordinates.items()
        if size > 1 and not name.startswith(_DATA_PARALLEL)
    }
    if identity.world_size < 2:
        return [], Unseen.ONE_REPLICA
    members = (
        ",".join(f"{name}={index}" for name, index in sorted(others.items()))
        if others
        else members_text(range(identity.world_size))
    )
    return [Replicas(members, [name for name, _ in named], [each for _, each in named])], None


def wraps_replicas(module: Any) -> bool:
    """True if the module says by itself which of its parameters are replicated."""
    return any(_is_ddp(each) for each in module.modules()) or any(
        hasattr(each, "placements") or _is_flat_shard(each) for each in module.parameters()
    )


def _parameters(module: Any) -> Iterable[tuple[str, Any, list[int], Unseen | None]]:
    wrapped = [each for each in module.modules() if _is_ddp(each)]
    for each in wrapped:
        yield from _of_ddp(each)
    if not wrapped:
        for name, each in module.named_parameters():
            yield _of_sharded(name, each)


def _of_ddp(module: Any) -> Iterable[tuple[str, Any, list[int], Unseen | None]]:
    ranks = _ranks(module.process_group)
    why = Unseen.ONE_REPLICA if len(ranks) < 2 else Unseen.LOCAL_UPDATES if _updates_locally(module) else None
    ignored = set(getattr(module, "parameters_to_ignore", ()))
    for name, each in module.module.named_parameters():  # a tied parameter comes once
        if name not in ignored and each.numel():
            yield name, each.to_local() if hasattr(each, "to_local") else each, ranks, why


def _of_sharded(name: str, parameter: Any) -> tuple[str, Any, list[int], Unseen | None]:
    placements: Any = getattr(parameter, "placements", ())
    if len(placements) >= 2 and placements[0].is_replicate() and _is_shard(placements[1]):
        ranks = _ranks(parameter.device_mesh.get_group(0))
        local = parameter.to_local()
        if len(ranks) > 1 and local.numel():
            return name, local, ranks, None
    return name, parameter, [], Unseen.SHARDED


def _is_shard(placement: Any) -> bool:
    return placement.is_shard() or type(placement).__name__ == "_StridedShard"


def _is_ddp(module: Any) -> bool:
    parallel: Any = sys.modules.get("torch.nn.parallel.distributed")
    return (
        parallel is not None
        and isinstance(module, parallel.DistributedDataParallel)
        and hasattr(module, "process_group")  # else its constructor has failed
    )


def _is_flat_shard(parameter: Any) -> bool:
    """True for the parameters of FSDP version 1."""
    return type(parameter).__name__ == "FlatParameter" or hasattr(parameter, "_is_flat_param")


def _updates_locally(module: Any) -> bool:
    hooks = getattr(module, "_comm_hooks", ())
    names = [getattr(hook, "__qualname__", "").lower() for hook, _ in hooks]
    return any(local in name for name in names for local in _LOCAL_HOOKS)


def _ranks(group: Any) -> list[int]:
    distributed: Any = sys.modules["torch.distributed"]
    return list(distributed.get_process_group_ranks(group))
