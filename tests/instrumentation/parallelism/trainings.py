"""Short trainings of the reference model, one for each kind of parallelism."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from rankwatch_trainer.model import GPT, VOCABULARY, Block

WIDTH, HEADS, CONTEXT = 16, 2, 8
MICROBATCHES = 6


def model(blocks: int = 2) -> GPT:
    torch.manual_seed(1)
    return GPT([Block(WIDTH, HEADS) for _ in range(blocks)], width=WIDTH, context=CONTEXT)


def text(rows: int = 4) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, CONTEXT + 1))


def train(module: Any) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        module(text()).backward()
        optimizer.step()
        optimizer.zero_grad()


def split_linears(module: GPT, mesh: Any) -> GPT:
    """Tensor parallel: the linear layers of each block by columns, then by rows."""
    plan = {
        "query_key_value": ColwiseParallel(output_layouts=Replicate()),
        "attention_out": RowwiseParallel(input_layouts=Replicate()),
        "feed_forward.1": ColwiseParallel(),
        "feed_forward.3": RowwiseParallel(),
    }
    for block in module.blocks:
        parallelize_module(block, mesh, plan)
    return module


def data_parallel(_: int) -> None:
    train(DistributedDataParallel(model(), bucket_cap_mb=1))


def sharded(_: int) -> None:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("shard",))
    module = model()
    for block in module.blocks:
        fully_shard(block, mesh=mesh)
    train(fully_shard(module, mesh=mesh))


def tensor_parallel(_: int) -> None:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tensor",))
    train(split_linears(model(), mesh))


def sharded_and_tensor_parallel(_: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    module = split_linears(model(), mesh["tensor"])
    for block in module.blocks:
        fully_shard(block, mesh=mesh["data"])
    train(fully_shard(module, mesh=mesh["data"]))


def replicated_shards(_: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    module = model()
    for block in module.blocks:
        fully_shard(block, mesh=mesh)
    train(fully_shard(module, mesh=mesh))


class Stage(nn.Module):
    """One block of the model. The first has the embeddings too, the last the head."""

    def __init__(self, whole: GPT, index: int) -> None:
        super().__init__()
        self.block = whole.blocks[index]
        self.embeddings = nn.ModuleList(
            [whole.token_embedding, whole.position_embedding] if not index else []
        )
        self.head = whole.head if index == len(whole.blocks) - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embeddings:
            x = self.embeddings[0](x) + self.embeddings[1].weight
        x = self.block(x)
        return x if self.head is None else self.head(x)


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def pipeline(rank: int, schedule: Any) -> dict[str, Any]:
    stages = 4
    first, last = rank == 0, rank == stages - 1
    hidden = torch.zeros(1, CONTEXT, WIDTH, requires_grad=True)
    module = Stage(model(stages), rank)
    group = dist.new_group(list(range(stages)), group_desc="pipeline")
    stage = PipelineStage(
        module,
        rank,
        stages,
        torch.device("cpu"),
        input_args=torch.zeros(1, CONTEXT, dtype=torch.int64) if first else hidden,
        output_args=torch.zeros(1, CONTEXT, VOCABULARY, requires_grad=True) if last else hidden,
        group=group,
    )
    steps = schedule(stage, MICROBATCHES, loss_fn=loss)
    batch = text(MICROBATCHES)
    if first:
        steps.step(batch[:, :-1].contiguous())  # torch 2.11 compares strides with those of `input_args`
    elif last:
        steps.step(target=batch[:, 1:])
    else:
        steps.step()
    links = (not first) + (not last)
    return {"activations": links * MICROBATCHES, "bytes": hidden.nbytes}


CASES = {
    "data parallel": data_parallel,
    "sharded": sharded,
    "tensor parallel": tensor_parallel,
    "sharded and tensor parallel": sharded_and_tensor_parallel,
    "replicated shards": replicated_shards,
    "pipeline, GPipe": lambda rank: pipeline(rank, ScheduleGPipe),
    "pipeline, 1F1B": lambda rank: pipeline(rank, Schedule1F1B),
}
