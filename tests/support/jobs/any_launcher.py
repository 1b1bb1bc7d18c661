"""A plain loop on gloo that calls nothing of rankwatch, started by whatever launcher. It does not load the
compiler, as torch's own optimizers and DDP do, because that takes longer than torch itself.

any_launcher.py [ARGUMENTS]: its rank is what torchrun, Open MPI, MPICH or SLURM say. $STEPS: how many.
$CHECKPOINT: where rank 0 saves at the end. $FAIL: the rank that fails in its third step, at its first start.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

PLACES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


class Descent(Optimizer):
    """Gradient descent, on the sum of the gradients of all ranks."""

    add_param_group = Optimizer.add_param_group.__wrapped__  # what wraps it loads the compiler

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            dist.all_reduce(parameter.grad)
            parameter -= 0.01 * parameter.grad
            parameter.grad = None


def main() -> None:
    rank, size = next((int(os.environ[r]), int(os.environ[s])) for r, s in PLACES if r in os.environ)
    steps = int(os.environ.get("STEPS", "6"))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = Descent(model.parameters(), {})
    for step, (batch,) in enumerate(DataLoader(TensorDataset(torch.randn(2 * steps, 8)), batch_size=2)):
        model(batch).square().mean().backward()
        optimizer.step()
        if step == 3 and os.environ.get("FAIL") == f"{rank}:{os.environ.get('TORCHELASTIC_RESTART_COUNT')}":
            sys.exit(3)
        time.sleep(float(os.environ.get("PAUSE_SECONDS", "0")))
    if rank == 0 and "CHECKPOINT" in os.environ:
        torch.save(model.state_dict(), os.environ["CHECKPOINT"])
    dist.barrier()
    dist.destroy_process_group()
    if card := sys.modules.get("rankwatch.lifecycle"):
        card.DEADLINE_SECONDS = 120.0  # a card on a busy machine is a card


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
