"""A loop with DeepSpeed's engine that calls nothing of rankwatch.

deepspeed_loop.py FOLDER MODE STAGE ACCUMULATION [DTYPE]: two groups of parameters, clipping, an evaluation
and two checkpoints. Each rank writes into FOLDER what the loop itself had.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import deepspeed
import torch

STEPS, BATCH, SAVE_STEPS, EVALUATION_STEP = 6, 4, 3, 4
LARGEST_SCALE_POWER = 20
"""So large a scale makes the gradients of the first steps overflow in half precision."""


def engine_of(stage: int, accumulation: int, dtype: str) -> Any:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first, for minutes
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    weights, biases = (
        [each for each in model.parameters() if (each.ndim > 1) == is_weight] for is_weight in (True, False)
    )
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0.1,
        "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    }
    if dtype == "fp16":
        deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True  # slow on CPUs, no more
        config["fp16"] = {"enabled": True, "initial_scale_power": LARGEST_SCALE_POWER, "hysteresis": 1}
    elif dtype == "bf16":
        config["bf16"] = {"enabled": True}
    groups = [{"params": weights}, {"params": biases, "weight_decay": 0.0}]
    rows = torch.utils.data.TensorDataset(torch.randn(STEPS * accumulation * BATCH * 2, 8))
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=groups, training_data=rows, config=config
    )
    return engine, loader, next(engine.module.parameters()).dtype


def main(folder: Path, stage: int, accumulation: int, dtype: str) -> None:
    engine, loader, precision = engine_of(stage, accumulation, dtype)
    losses, norms, micro, seen = [], [], [], []
    for (batch,) in loader:
        loss = engine(batch.to(precision)).square().mean()
        engine.backward(loss)
        micro.append(loss.detach().float() / accumulation)
        last = engine.is_gradient_accumulation_boundary()
        engine.step()
        if not last:
            continue
        losses.append(sum(float(each) for each in micro))
        micro = []
        norms.append(None if engine.get_global_grad_norm() is None else float(engine.get_global_grad_norm()))
        if engine.global_steps == EVALUATION_STEP:
            engine.eval()
            with torch.no_grad():
                engine(batch.to(precision))
            engine.train()
        if engine.global_steps % SAVE_STEPS == 0:
            engine.save_checkpoint(str(folder / "saved"))
    weights = b"".join(each.detach().float().numpy().tobytes() for each in engine.module.parameters())
    seen = {
        "losses": losses,
        "norms": norms,
        "weights": hashlib.sha256(weights).hexdigest(),
        "skipped": engine.skipped_steps,
        "steps": engine.global_steps,
    }
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("mode")
    parser.add_argument("stage", type=int)
    parser.add_argument("accumulation", type=int)
    parser.add_argument("dtype", nargs="?", default="fp32")
    parser.add_argument("--local_rank")  # DeepSpeed's launcher adds it
    given = parser.parse_args()
    torch.set_num_threads(1)
    main(given.folder, given.stage, given.accumulation, given.dtype)
