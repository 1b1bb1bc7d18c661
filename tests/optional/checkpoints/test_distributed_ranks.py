"""Folders that several ranks have written together, also with metadata of their own for each rank."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankwatch_checkpoints import Outcome, verify
from support.checkpoints import flip
from support.jobs.forked_ranks import shared_ranks

pytestmark = pytest.mark.process

RANKS = 3
PROGRAM = """
import os, sys, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, Replicate, distribute_tensor
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
state = {
    "rows": distribute_tensor(torch.randn(31, 64), mesh, [Shard(0)]),
    "columns": distribute_tensor(torch.randn(5, 100), mesh, [Shard(1)]),
    "same": distribute_tensor(torch.randn(9), mesh, [Replicate()]),
    "plain": torch.ones(4),
    "step": 12,
}
dcp.save(state, checkpoint_id=sys.argv[1] + "/step-12")
dcp.save(state, checkpoint_id=sys.argv[1] + "/step-13", use_collectives=False)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """step-12 with common metadata, step-13 with that of each rank."""
    folder = tmp_path_factory.mktemp("dcp")
    log = folder / "log"
    codes = shared_ranks().run(["-c", PROGRAM, str(folder)], os.environ, ranks=RANKS, log=log)
    assert codes == [0] * RANKS, log.read_text()
    return folder


@pytest.mark.parametrize("step", [12, 13])
def test_ranks(folder: Path, step: int) -> None:
    found = verify(folder / f"step-{step}")
    assert (found.outcome, found.problems, found.step) == (Outcome.GOOD, [], step)


@pytest.mark.parametrize("step", [12, 13])
def test_damage_in_the_shard_of_a_rank(folder: Path, step: int) -> None:
    shard = folder / f"step-{step}" / "__2_0.distcp"
    flip(shard, 8 * 1500)
    problems = verify(folder / f"step-{step}").problems
    flip(shard, 8 * 1500)
    assert {(each.file, each.tensor) for each in problems} <= {
        (shard.name, name) for name in ("rows", "columns", "same", "plain")
    }
    assert problems


def test_metadata_of_a_rank_that_is_missing(folder: Path) -> None:
    metadata = folder / "step-13" / "__1.metadata"
    away = folder / "away"
    metadata.rename(away)
    found = verify(folder / "step-13")
    away.rename(metadata)
    assert found.outcome is not Outcome.GOOD
    assert metadata.name in {each.file for each in found.problems}
