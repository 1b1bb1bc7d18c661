"""A training loop of nanoGPT's shape: batches from a memory-mapped file, without a DataLoader.

The next batch is fetched between forward and backward. Gradients are accumulated, and DDP synchronises in the
last micro-step only. The scaler is switched off. Rank 0 alone evaluates and saves. nanoGPT prints
the loss of the last micro-batch, and calls it an approximation of their sum; here the sum is compared.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from parts import BLOCK, STEPS, VOCABULARY, TokenModel, pause, slow_updates
from torch.nn.parallel import DistributedDataParallel
from witness import Witness

eval_interval = 10
eval_iters = 3
grad_clip = 1.0
learning_rate = 6e-3
out = Path(os.environ["LOOP_RESULTS"])

witness = Witness()
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
master = rank == 0
gradient_accumulation_steps = 4 // world_size
torch.manual_seed(1337 + rank)

data_file = out / f"train{rank}.bin"
np.random.default_rng(rank).integers(VOCABULARY, size=20_000).astype(np.uint16).tofile(data_file)


def get_batch(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    data = np.memmap(data_file, dtype=np.uint16, mode="r")
    where = torch.randint(len(data) - BLOCK, (8,))
    x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in where])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in where])
    pause()
    return x, y


torch.manual_seed(1)
raw_model = TokenModel()
optimizer = torch.optim.AdamW(raw_model.parameters(), lr=learning_rate)
slow_updates(optimizer)
scaler = torch.amp.GradScaler("cpu", enabled=False)
model: Any = DistributedDataParallel(raw_model)


@torch.no_grad()
def estimate_loss() -> dict[str, float]:
    found = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            x, y = get_batch(split)
            with nullcontext():
                _, loss = model(x, y)
            losses[k] = loss.item()
        found[split] = losses.mean().item()
    model.train()
    return found


X, Y = get_batch("train")
iter_num = 0
while True:
    lr = learning_rate * (1 - iter_num / (STEPS + 1))
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == 0 and master:
        with witness.evaluation():
            estimate_loss()
        if iter_num > 0:
            with witness.checkpoint():
                checkpoint = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**checkpoint, "iter_num": iter_num}, out / "ckpt.pt")
    if iter_num >= STEPS:
        break
    losses = []
    with witness.step():
        for micro_step in range(gradient_accumulation_steps):
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
            with witness.phase("forward"):
                logits, loss = model(X, Y)
                loss = loss / gradient_accumulation_steps
            losses.append(loss.detach())
            with witness.phase("data_wait"):
                X, Y = get_batch("train")
            with witness.phase("backward"):
                scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        with witness.phase("optimizer"):
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        witness.loss(sum(losses))
    if master:
        print(f"iter {iter_num}: loss {losses[-1].item() * gradient_accumulation_steps:.4f}", flush=True)
    iter_num += 1
witness.finish(raw_model)
dist.destroy_process_group()
