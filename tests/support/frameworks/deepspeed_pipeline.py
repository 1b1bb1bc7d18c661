"""A training with DeepSpeed's pipeline of two stages, which calls nothing of rankwatch.

deepspeed_pipeline.py FOLDER MODE: each rank writes into FOLDER the losses that `train_batch` has returned.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed.pipe import PipelineModule

STEPS, BATCH, ACCUMULATION = 6, 4, 2


def main(folder: Path) -> None:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first, for minutes
    deepspeed.init_distributed()
    torch.manual_seed(1)
    layers = [torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)]
    model = PipelineModule(
        layers=layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss, partition_method="uniform"
    )
    rows = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    config = {
        "train_batch_size": BATCH * ACCUMULATION,
        "train_micro_batch_size_per_gpu": BATCH,
        "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    }
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), training_data=rows, config=config
    )
    losses = [float(engine.train_batch()) for _ in range(STEPS)]
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(losses))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
