"""Collectives, sends and receives without a model, including rare ones."""

from __future__ import annotations

import contextlib
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from rankwatch.blackbox.reader import Reader

SIZE = 4


def every_collective(rank: int) -> None:
    one, four = torch.ones(1), torch.ones(SIZE)
    dist.all_reduce(one)
    dist.all_reduce(one, async_op=True).wait()
    with torch.inference_mode():
        dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.sparse_coo_tensor([[0, 2]], torch.ones(2), (4,), check_invariants=False))
    dist.broadcast(one, 1)
    dist.reduce(one, 2)
    dist.all_gather([torch.ones(1) for _ in range(SIZE)], one)
    dist.all_gather_into_tensor(four, one)
    dist.gather(one, [torch.ones(1) for _ in range(SIZE)] if rank == 0 else None)
    dist.scatter(one, [torch.ones(1) for _ in range(SIZE)] if rank == 0 else None)
    dist.reduce_scatter_tensor(torch.ones(1), torch.ones(SIZE))
    dist.all_to_all_single(torch.ones(SIZE), four)
    dist.barrier()


def in_objects(rank: int) -> None:
    dist.all_gather_object([None] * SIZE, {"rank": rank})
    dist.broadcast_object_list([rank, "text"], src=0)
    dist.scatter_object_list([None], list(range(SIZE)) if rank == 0 else None, src=0)


def functional_collectives(_: int) -> None:
    x = torch.ones(SIZE, requires_grad=True)
    world = dist.group.WORLD
    functional.all_gather_tensor(x.detach(), 0, world).wait()
    functional.reduce_scatter_tensor(torch.ones(SIZE), "sum", 0, world).wait()
    # Squared, because the gradient of a sum is not contiguous and torch 2.11 refuses to reduce-scatter it.
    functional.all_gather_tensor_autograd(x, 0, world).square().sum().backward()
    (functional.all_reduce(x.detach(), "sum", world) + 1).sum()
    dist.reduce_scatter_tensor(torch.ones(1), torch.ones(SIZE))


def subgroups(_: int) -> None:
    """Two groups with one label and different members, two with one label and the same members, and a group
    that is destroyed and created again."""
    groups = [
        dist.new_group([0, 1], group_desc="pair"),
        dist.new_group([0, 2], group_desc="pair"),
        dist.new_group([0, 1, 2, 3], group_desc="twin"),
        dist.new_group([0, 1, 2, 3], group_desc="twin"),
    ]
    for group in groups:
        if dist.get_rank(group) >= 0:
            dist.all_reduce(torch.ones(1), group=group)
    for _ in range(2):
        again = dist.new_group([0, 1, 2, 3], group_desc="again")
        dist.all_reduce(torch.ones(2), group=again)
        dist.barrier()
        dist.destroy_process_group(again)


def failures(rank: int) -> None:
    """A collective that all ranks refuse at once, and one whose peer never joins."""
    with contextlib.suppress(RuntimeError, ValueError):
        dist.all_gather_into_tensor(torch.ones(SIZE + 1), torch.ones(1))
    group = dist.new_group([0, 1], group_desc="short")
    if rank == 0:
        # The timeout is that of the operation. A timeout of the group would also limit its creation, and a
        # rank may be late.
        options = dist.AllreduceOptions()
        options.timeout = timedelta(milliseconds=200)
        with contextlib.suppress(RuntimeError):
            group.allreduce([torch.ones(1)], options).wait()


def sends_and_receives(rank: int) -> None:
    """Sends and receives around a ring, with waits at once, later, in a batch and for any source, and without
    a wait."""
    following, before = (rank + 1) % SIZE, (rank - 1) % SIZE
    tensor = torch.ones(2)
    if rank % 2 == 0:
        dist.send(tensor, following)
        dist.recv(tensor, before)
    else:
        dist.recv(tensor, before)
        dist.send(tensor, following)
    works = [dist.isend(tensor, following), dist.irecv(torch.ones(2), before)]
    for work in reversed(works):
        work.wait()
    pair = [dist.P2POp(dist.isend, tensor, following), dist.P2POp(dist.irecv, torch.ones(2), before)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    if rank < 2:
        dist.send(tensor, rank + 2, tag=1)
    else:
        dist.recv(tensor, tag=1)
    if rank == 0:
        unwaited = dist.isend(tensor, 1, tag=2)
        dist.barrier()
        del unwaited
        dist.isend(tensor, 1, tag=3).wait()
    else:
        if rank == 1:
            dist.recv(tensor, 0, tag=2)
        dist.barrier()
        if rank == 1:
            dist.recv(tensor, 0, tag=3)


def victim(rank: int) -> dict[str, Any]:
    """Rank 1 posts a receive, continues to work, and then waits. Rank 0 sends once it sees that rank 1
    waits."""
    group = dist.new_group([0, 1], group_desc="victim")
    if rank == 1:
        work = dist.irecv(torch.ones(1), 0, group=group)
        posted = time.monotonic()
        dist.barrier()
        waits = time.monotonic()
        work.wait()
        return {"posted": posted, "waits": waits}
    dist.barrier()
    if rank != 0:
        return {}
    reader = Reader(Path(os.environ["RANKWATCH_DIR"]) / "job" / "1.blackbox")
    deadline = time.monotonic() + 30.0
    while not (oldest := _oldest(reader)) and time.monotonic() < deadline:
        time.sleep(0.005)
    sent = time.monotonic()
    dist.send(torch.ones(1), 1, group=group)
    return {"oldest": oldest, "sent": sent}


def _oldest(reader: Reader) -> list[float]:
    """When the rank began to wait in that group, according to its black box; empty before."""
    return [each.oldest for each in reader.now().groups if each.name == "victim" and each.oldest]


CASES = {
    "every collective": every_collective,
    "objects": in_objects,
    "functional": functional_collectives,
    "subgroups": subgroups,
    "failures": failures,
    "sends and receives": sends_and_receives,
    "victim": victim,
}
