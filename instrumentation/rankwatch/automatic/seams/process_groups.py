"""Process groups: the first one shows that this process is a rank, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from rankwatch.automatic import recording
from rankwatch.automatic.patching import watch


def targets(first: Callable[[], object] | None = None) -> Mapping[str, Callable[[ModuleType], object]]:
    """The functions that join process groups. first: called before the process joins one."""

    def patch(module: ModuleType) -> None:
        def joins(*args: Any, **kwargs: Any) -> None:
            if first is not None:
                first()
            # Before the group is there: collectives and the flight recorder are watched from its start.
            recording.opened()

        watch(module, "init_process_group", began=joins, also=("torch.distributed",))

    return {"torch.distributed.distributed_c10d": patch}
