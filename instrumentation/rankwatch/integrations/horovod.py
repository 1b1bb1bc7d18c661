"""Horovod: the rank of this process by Horovod itself. The training loop makes the explicit calls.

    import horovod.torch as hvd
    import rankwatch.integrations.horovod

    hvd.init()
    run = rankwatch.integrations.horovod.start(target_steps=1000)

Horovod had its last release in 2023. This integration is tested against a stand-in for its module, not
against Horovod. Its collectives bypass PyTorch's dispatcher: a phase `communication` around
`optimizer.synchronize()` shows the wait for them.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import rankwatch
from rankwatch.errors import UsageError
from rankwatch.integrations.frameworks import require

require("horovod", integration="horovod", name="Horovod")

_MODULES = (
    "horovod.torch",
    "horovod.tensorflow.keras",
    "horovod.keras",
    "horovod.tensorflow",
    "horovod.mxnet",
)


def start(**options: Any) -> rankwatch.Run | rankwatch.DisabledRun:
    """Call `rankwatch.start` with rank, world size and local rank by Horovod; only after `hvd.init()`.

    options: those of `rankwatch.start`. Raises UsageError if Horovod is not initialised.
    """
    horovod = _loaded()
    try:
        place = {
            "rank": horovod.rank(),
            "world_size": horovod.size(),
            "local_rank": horovod.local_rank(),
        }
    except ValueError as error:  # "Horovod has not been initialized; use hvd.init()."
        raise UsageError(f"Horovod does not know this rank yet: {error}") from None
    return rankwatch.start(**(place | options))


def _loaded() -> ModuleType:
    """Return the binding of Horovod that the script has imported."""
    for name in _MODULES:
        if module := sys.modules.get(name):
            return module
    raise UsageError(f"no binding of Horovod is imported; import one of {', '.join(_MODULES)}")
