"""A loop with Accelerate: accumulation, clipping, a scheduler, evaluation and `save_state`."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from parts import STEPS, Classifier, Vectors, slow_collate, slow_updates
from torch.utils.data import DataLoader
from witness import Witness

out = Path(os.environ["LOOP_RESULTS"])
witness = Witness()
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(11)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
slow_updates(optimizer)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=STEPS)
per_epoch = 8 * accelerator.gradient_accumulation_steps
data = Vectors(16 * per_epoch * accelerator.num_processes)
train_loader = DataLoader(data, batch_size=16, shuffle=True, collate_fn=slow_collate)
valid_loader = DataLoader(Vectors(48 * accelerator.num_processes), batch_size=16, collate_fn=slow_collate)
model, optimizer, train_loader, valid_loader, scheduler = accelerator.prepare(
    model, optimizer, train_loader, valid_loader, scheduler
)

completed = 0
for _epoch in range(-(-STEPS // 8)):
    model.train()
    losses = []
    begun = False
    for inputs, classes in witness.batches(train_loader):
        if not begun:
            witness.begin_step()
            begun = True
        with accelerator.accumulate(model):
            with witness.phase("forward"):
                output = model(inputs)
                loss = torch.nn.functional.cross_entropy(output, classes)
            losses.append(loss.detach())
            with witness.phase("backward"):
                accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            if accelerator.sync_gradients:
                with witness.phase("optimizer"):
                    optimizer.step()
            else:
                optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            witness.loss(torch.stack(losses).mean())
            losses = []
            witness.end_step()
            begun = False
            completed += 1
            accelerator.print(f"step {completed} loss {witness.losses[-1]:.6f}", flush=True)
            if completed == STEPS:
                break
    model.eval()
    correct = 0
    with witness.evaluation():
        for inputs, classes in valid_loader:
            with torch.no_grad():
                output = model(inputs)
            predictions, references = accelerator.gather_for_metrics((output.argmax(dim=-1), classes))
            correct += int((predictions == references).sum())
    accelerator.print(f"correct {correct}", flush=True)
    with witness.checkpoint():
        accelerator.save_state(str(out / f"step{completed}"))
witness.finish(accelerator.unwrap_model(model))
accelerator.end_training()
