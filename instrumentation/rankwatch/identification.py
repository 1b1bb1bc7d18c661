"""Identifies this process: from the arguments of `start`, torch.distributed and its launcher, in this order.

Often the answer is known at once. Otherwise it becomes known while the run begins: only `init_process_group`
tells the ranks apart that `torch.multiprocessing.spawn` or Lightning start, and ranks without a job id agree
on the run's name through torch's store. Nobody waits for that: see `publication`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from rankwatch import processes
from rankwatch.conventions import environment
from rankwatch.errors import IdentityError
from rankwatch.identity import Identity, in_tenant, safe_run
from rankwatch.launchers import (
    Place,
    attempt_by,
    find_place,
    has_only_one_node,
    job_name,
    most_attempts_by,
    run_id,
)

_KEY = "rankwatch/run/"
_FIRST_RANK_SECONDS = 5.0
"""Head start of rank 0, whose proposal does not change when torchrun starts its workers again."""
_PAUSE_SECONDS = 0.02
_CONNECT_SECONDS = 10.0


class Given(NamedTuple):
    """What the caller of `start` says. None means that it is to be found."""

    run: str | None = None
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    host: str | None = None
    coordinates: Mapping[str, tuple[int, int]] = {}
    number: int = 1
    """Number of the run in this process, from 1: the same on all ranks of a job that trains twice."""

    def check(self) -> None:
        """Raise IdentityError if the values contradict each other, whatever the environment holds."""
        world_size = 1 if self.world_size is None else self.world_size
        _identity(self, safe_run(self.run or "run"), self.place(None) or Place(0, world_size), {})

    def place(self, found: Place | None) -> Place | None:
        """Return the place that is given, completed by the one that was found; None if none is given."""
        if self.rank is None:
            return None
        world_size = self.world_size
        if world_size is None:
            world_size = max(self.rank + 1, found.world_size if found else 1)
        return Place(self.rank, world_size, found.local_rank if found and found.rank == self.rank else None)


def identify(given: Given, env: Mapping[str, str], *, last: bool, ask: bool) -> Identity | None:
    """Return the identity of this process; None if it is not known yet.

    last: decide by what is known, because the first step has begun or the run has ended.
    ask: the store may be asked, which is a network call.

    Raises IdentityError if the values contradict each other, or if they cannot be known any more.
    """
    place = _place(given, env, last=last)
    if place is None:
        return None
    run = given.run or run_id(env) or _derived_run(given, env, place, last=last, ask=ask)
    if run is None:
        return None
    return _identity(given, safe_run(in_tenant(run, env.get(environment.TENANT, ""))), place, env)


def _place(given: Given, env: Mapping[str, str], *, last: bool) -> Place | None:
    in_torch = place_in_torch()
    if in_torch is not None:
        found = _quietly(env)
        if found is not None and found[:2] == in_torch[:2]:
            in_torch = found  # torch does not know the local rank
        return given.place(in_torch) or in_torch
    if given.rank is not None:
        return given.place(None if given.world_size is not None else _quietly(env))
    # A child of multiprocessing inherits the variables of its parent, so they say nothing about it.
    if not last and processes.is_child_without_rank(env):
        return None
    waits = not last and may_be_initialized()
    try:
        found = find_place(env)
    except IdentityError:
        if waits:
            return None
        raise
    if found is None and waits:
        return None
    return _with_world_size(found, given.world_size)


def _with_world_size(found: Place | None, world_size: int | None) -> Place:
    if world_size is None:
        return found or Place(0, 1)
    if found is None and world_size > 1:
        raise IdentityError(
            f"world_size is {world_size}, but nothing gives this process its rank: pass rank="
        )
    return found._replace(world_size=world_size) if found else Place(0, world_size)


def _quietly(env: Mapping[str, str]) -> Place | None:
    try:
        return find_place(env)
    except IdentityError:
        return None


def _derived_run(given: Given, env: Mapping[str, str], place: Place, *, last: bool, ask: bool) -> str | None:
    again = f"-{given.number}" if given.number > 1 else ""
    if place.world_size == 1:
        return processes.run_of_one() + again
    job = processes.run_of_job(env.get("MASTER_ADDR"), env.get("MASTER_PORT"))
    by_torchrun = "TORCHELASTIC_RUN_ID" in env
    proposal = f"{job}-{processes.started_text(by_launcher=by_torchrun)}{again}"
    if has_only_one_node(env, place.world_size):
        return proposal
    if ask:
        try:
            store = find_store()
            if store is not None:
                return agree(store, place.rank, given.number, proposal)
        except (RuntimeError, OSError, ValueError):  # the store has gone with rank 0, or is of another kind
            last = True
    return job + again if last or not may_be_initialized() else None


def _identity(given: Given, run: str, place: Place, env: Mapping[str, str]) -> Identity:
    local_rank = given.local_rank if given.local_rank is not None else _local_rank(place, env)
    return Identity(
        run=run,
        rank=place.rank,
        world_size=place.world_size,
        local_rank=local_rank,
        host=given.host or os.uname().nodename,
        short_name=job_name(env) or processes.script_name(),
        attempt=attempt_by(env),
        most_attempts=most_attempts_by(env),
        coordinates=dict(given.coordinates),
    ).checked()


def _local_rank(place: Place, env: Mapping[str, str]) -> int:
    if place.local_rank is not None:
        return place.local_rank
    number = processes.number_of_child()
    if number is not None:
        return number if number <= place.rank else 0
    text = env.get("LOCAL_RANK", "")
    return int(text) if text.isdecimal() else 0


def _distributed() -> Any:
    """Return torch.distributed if the process has loaded it and it can be used, else None."""
    module: Any = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() else None


def may_be_initialized() -> bool:
    """Return True if the process has loaded torch with torch.distributed, so that it may become a rank."""
    return _distributed() is not None


def place_in_torch() -> Place | None:
    """Return the place of this process in the default process group; None before `init_process_group`."""
    distributed = _distributed()
    if distributed is None or not distributed.is_initialized():
        return None
    return Place(distributed.get_rank(), distributed.get_world_size())


def has_store() -> bool:
    """Return True if there is a store that all ranks of the job share. Asks nobody."""
    distributed = _distributed()
    return distributed is not None and (_launcher_store() is not None or distributed.is_initialized())


def _launcher_store() -> tuple[str, str] | None:
    """Return address and port of torchrun's own store, which is there before `init_process_group`."""
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
        from datetime import timedelta

        timeout = timedelta(seconds=_CONNECT_SECONDS)
        return distributed.TCPStore(
            place[0], int(place[1]), is_master=False, timeout=timeout, wait_for_workers=False
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
