"""All ranks are there, before the first collective."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def meet(rank: int, size: int) -> Any:
    """The store of the job (torch exports no type for it), once all ranks have come to this line.

    They meet where torchrun says, and wait for each other for half an hour, which is torch's own patience.
    `init_process_group` would wait no longer than for a collective, though ranks may start further apart.
    """
    # DistributedDataParallel imports it between two collectives, and on a busy machine one rank needs seconds
    # more for it than another: that is start-up, too
    import torch._dynamo  # noqa: F401 - imported for later

    store, _, _ = next(dist.rendezvous("env://", rank=rank, world_size=size))  # type: ignore[attr-defined]
    start = dist.PrefixStore("start", store)  # type: ignore[attr-defined]
    if start.add("arrived", 1) == size:
        start.set("complete", "")
    start.wait(["complete"])
    return dist.PrefixStore("default_pg", store)  # type: ignore[attr-defined]
