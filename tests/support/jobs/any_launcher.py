"""A plain DDP loop on gloo that calls nothing of rankwatch, started by whatever launcher.

any_launcher.py [ARGUMENTS]: its rank is what torchrun, Open MPI, MPICH or SLURM say. $STEPS: how many.
$CHECKPOINT: where rank 0 saves at the end. $FAIL: the rank that fails in its third step, at its first start.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

PLACES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def main() -> None:
    rank, size = next((int(os.environ[r]), int(os.environ[s])) for r, s in PLACES if r in os.environ)
    steps = int(os.environ.get("STEPS", "6"))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (batch,) in enumerate(DataLoader(TensorDataset(torch.randn(2 * steps, 8)), batch_size=2)):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if step == 3 and os.environ.get("FAIL") == f"{rank}:{os.environ.get('TORCHELASTIC_RESTART_COUNT')}":
            sys.exit(3)
        time.sleep(float(os.environ.get("PAUSE_SECONDS", "0")))
    if rank == 0 and "CHECKPOINT" in os.environ:
        torch.save(model.state_dict(), os.environ["CHECKPOINT"])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
