"""Half precision with a gradient scaler whose first scale is too large, so that it skips updates."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from parts import STEPS, Classifier, Vectors, slow_collate, slow_updates
from torch.utils.data import DataLoader
from witness import Witness

out = Path(os.environ["LOOP_RESULTS"])
witness = Witness()
torch.manual_seed(5)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
slow_updates(optimizer)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=3)
per_epoch = 8
train_loader = DataLoader(
    Vectors(16 * per_epoch), batch_size=16, shuffle=True, num_workers=2, collate_fn=slow_collate
)
valid_loader = DataLoader(Vectors(48), batch_size=16, collate_fn=slow_collate)

iteration = 0
while iteration < STEPS:
    model.train()
    for inputs, classes in witness.batches(train_loader):
        with witness.step():
            optimizer.zero_grad()
            with witness.phase("forward"), torch.autocast("cpu", dtype=torch.float16):
                output = model(inputs)
                loss = torch.nn.functional.cross_entropy(output, classes)
            with witness.phase("backward"):
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            before = scaler.get_scale()
            with witness.phase("optimizer"):
                scaler.step(optimizer)
            scaler.update()
            witness.skipped += scaler.get_scale() < before
            witness.loss(loss)
        print(f"step {iteration} loss {loss.item():.6f} scale {scaler.get_scale():g}", flush=True)
        iteration += 1
        if iteration == STEPS:
            break
    scheduler.step()
    model.eval()
    with witness.evaluation(), torch.no_grad():
        correct = 0
        for inputs, classes in valid_loader:
            correct += int((model(inputs).argmax(1) == classes).sum())
    print(f"accuracy {correct / 48:.4f}", flush=True)
    with witness.checkpoint():
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()},
            out / f"epoch{iteration}.pt",
        )
witness.finish(model)
