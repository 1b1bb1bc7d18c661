"""A loop with Accelerate that calls nothing of rankwatch, unless it is asked to.

accelerate_loop.py FOLDER MODE: with accumulation, clipping, `save_state`, evaluation, and `load_state`. MODE
is `plain`, or `hand`: with the tracker. Each rank writes into FOLDER what the loop itself had.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

BATCHES, ACCUMULATION, SAVE_STEPS, EVALUATION_STEPS, BATCH = 8, 2, 2, 3, 2


class Rows(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return BATCHES * BATCH * 2

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.linspace(0.0, 1.0, 4) * (1 + index)


def main(folder: Path, mode: str) -> None:
    trackers: list[Any] = []
    if mode == "hand":
        from rankwatch.integrations.accelerate import RankwatchTracker

        trackers.append(RankwatchTracker())
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION, log_with=trackers)
    accelerator.init_trackers("test", {})
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader, held_out = DataLoader(Rows(), batch_size=BATCH), DataLoader(Rows(), batch_size=2 * BATCH)
    model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
    step, losses, waited, micro = 0, [], 0.0, []
    batches = iter(loader)
    while True:
        began = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - began
        if batch is None:
            break
        with accelerator.accumulate(model):
            loss = (model(batch) ** 2).mean()
            micro.append(loss.detach() / ACCUMULATION)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        step += 1
        losses.append(float(sum(micro[1:], micro[0])))
        micro = []
        accelerator.log({"my_loss": losses[-1]}, step=step)
        if step % EVALUATION_STEPS == 0:
            model.eval()
            with torch.no_grad():
                for batch in held_out:
                    model(batch)
            model.train()
        if step % SAVE_STEPS == 0:
            accelerator.save_state(str(folder / f"state-{step}"))
    accelerator.load_state(str(folder / f"state-{SAVE_STEPS}"))
    weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    seen = {"losses": losses, "waited": waited, "weights": hashlib.sha256(weights).hexdigest()}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(seen))
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
