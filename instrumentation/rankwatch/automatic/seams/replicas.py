"""Models that DistributedDataParallel replicates: their fingerprint after each step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from rankwatch.automatic.patching import watch
from rankwatch.conventions import Capability
from rankwatch.run import Run

_wrapped: list[weakref.ref[Any]] = []
"""In the order in which they were wrapped, which is the same on all ranks."""
_MOST_WRAPPED = 8


def targets() -> Mapping[str, Callable[[ModuleType], object]]:
    """torch's module of DistributedDataParallel."""
    return {"torch.nn.parallel.distributed": _patch}


def _patch(module: ModuleType) -> None:
    watch(module.DistributedDataParallel, "__init__", began=_begins, shows=Capability.REPLICAS)


def _begins(replica: Any, /, *args: Any, **kwargs: Any) -> None:
    if all(each() is not replica for each in _wrapped):
        _wrapped.append(weakref.ref(replica))
    del _wrapped[:-_MOST_WRAPPED]


def fingerprint(run: Run) -> None:
    """Read the parameters of the models that are replicated, after a step."""
    fingerprints = run.fingerprints
    if _wrapped and fingerprints is not None and fingerprints.is_due() and not run._steps.open:
        fingerprints.of([module for each in _wrapped if (module := each()) is not None])
