"""What torch.distributed knows: the place of this process, and the run id that all ranks agree on."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

from rankwatch.launchers import Place

_KEY = "rankwatch/run/"
_FIRST_RANK_SECONDS = 5.0
"""Head start of rank 0, whose proposal does not change when torchrun starts its workers again."""
_PAUSE_SECONDS = 0.02
_CONNECT_TIMEOUT = timedelta(seconds=10)


def _distributed() -> Any:
    """torch.distributed if the process has loaded it and it can be used."""
    module: Any = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() else None


def may_be_initialized() -> bool:
    """True if the process has loaded torch with torch.distributed, so that it may become a rank later."""
    return _distributed() is not None


def place_in_torch() -> Place | None:
    """The place of this process in the default process group; None before `init_process_group`."""
    distributed = _distributed()
    if distributed is None or not distributed.is_initialized():
        return None
    return Place(distributed.get_rank(), distributed.get_world_size())


def has_store() -> bool:
    """True if there is a store that all ranks of the job share. Asks nobody."""
    distributed = _distributed()
    return distributed is not None and (_launcher_store() is not None or distributed.is_initialized())


def _launcher_store() -> tuple[str, str] | None:
    """Address and port of torchrun's own store, which is there before `init_process_group`."""
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and address and port:
        return address, port
    return None


def find_store() -> Any:
    """Return a store that all ranks of the job share; None as long as there is none. Raises RuntimeError."""
    distributed = _distributed()
    if distributed is None:
        return None
    if (place := _launcher_store()) is not None:
        return distributed.TCPStore(
            place[0], int(place[1]), is_master=False, timeout=_CONNECT_TIMEOUT, wait_for_workers=False
        )
    if not distributed.is_initialized():
        return None
    store = distributed.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def agree(store: Any, rank: int, number: int, proposal: str) -> str:
    """Return the id of this run that the first rank has proposed, normally rank 0. Raises RuntimeError.

    Does not block in the store, because the training thread may need it meanwhile.
    """
    key = f"{_KEY}{number}"
    until = time.monotonic() + _FIRST_RANK_SECONDS
    while rank and time.monotonic() < until and not store.check([key]):
        time.sleep(_PAUSE_SECONDS)
    agreed: bytes = store.compare_set(key, "", proposal)
    return agreed.decode("utf-8", "replace")
