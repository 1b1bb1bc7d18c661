"""A training with Ray Train on two workers of one small Ray of its own.

ray_training.py FOLDER: two trainings. The loop of the first one calls nothing of rankwatch. The second one
makes the explicit calls; before them each worker leaves what it sees of rankwatch in FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def plain_loop(config: dict[str, str]) -> None:
    """Runs in a worker, and knows nothing of rankwatch."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(torch.ones(6, 4), batch_size=2):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


def loop(config: dict[str, str]) -> None:
    """Runs in a worker."""
    variables = {name: value for name, value in os.environ.items() if name in ("OWN", "RANKWATCH_RUN")}
    seen = {"variables": variables, "woken": "rankwatch.automatic.installing" in sys.modules}
    rank = ray.train.get_context().get_world_rank()
    (Path(config["folder"]) / f"{rank}.json").write_text(json.dumps(seen))
    from rankwatch.integrations import ray_train

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ray_train.start() as run:
        for _ in range(3):
            with run.step():
                optimizer.zero_grad()
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()


def main(folder: str) -> None:
    ray.init(
        num_cpus=2,
        object_store_memory=80 << 20,
        include_dashboard=False,
        _temp_dir=f"{folder}/ray",
        _node_ip_address="127.0.0.1",
        configure_logging=False,
        log_to_driver=False,
    )
    for name, train in (("plain", plain_loop), ("trained", loop)):
        config = RunConfig(
            name=name,
            storage_path=f"{folder}/results",
            worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": "1", "OWN": "stays"}},
        )
        scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5})
        given = {"folder": folder}
        TorchTrainer(train, train_loop_config=given, scaling_config=scaling, run_config=config).fit()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
