"""FSDP2 with gradient accumulation, clipping, and checkpoints by torch.distributed.checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from parts import STEPS, Classifier, Vectors, slow_collate, slow_updates
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler
from witness import Witness

accumulate = 2
out = Path(os.environ["LOOP_RESULTS"])
witness = Witness()
dist.init_process_group("gloo")
torch.manual_seed(9)
model: Any = Classifier(outputs=10)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
fully_shard(model.layers[0], mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
slow_updates(optimizer)
data = Vectors(16 * 8 * dist.get_world_size())
sampler: Any = DistributedSampler(data, seed=2)
loader = DataLoader(data, batch_size=16, sampler=sampler, collate_fn=slow_collate)


def forever() -> Any:
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from witness.batches(loader)
        epoch += 1


batches = forever()
beside = dist.new_group()  # asynchronous saves talk while training does
pending: Any = None
for step in range(STEPS):
    losses = []
    witness.begin_step()
    for micro in range(accumulate):
        inputs, classes = next(batches)
        model.set_requires_gradient_sync(micro == accumulate - 1)
        with witness.phase("forward"):
            output = model(inputs)
            loss = torch.nn.functional.cross_entropy(output, classes) / accumulate
        with witness.phase("backward"):
            loss.backward()
        losses.append(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with witness.phase("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
    witness.loss(torch.sum(torch.stack(losses)))  # as torchtitan does
    witness.end_step()
    if dist.get_rank() == 0:
        print(f"step {step} loss {witness.losses[-1]:.6f}", flush=True)
    if step % 8 == 7:
        states: Any = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        with witness.checkpoint():
            if step == 7:
                dcp.save(states, checkpoint_id=out / f"step{step}")
            else:
                if pending is not None:
                    pending.result()
                pending = dcp.async_save(states, checkpoint_id=out / f"step{step}", process_group=beside)
if pending is not None:
    pending.result()
witness.finish(model)
dist.destroy_process_group()
