"""Gradient norms of sharded models in a job of two gloo ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.automatic.programs import errors, run_program

pytest.importorskip("torch")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PROGRAM = """
import json
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

def losses(model, optimizer, way):
    for number in range(2):
        loss = model(torch.full((4, 8), RANK + number + 1.0)).square().mean()
        loss.backward()
        if way == "parts":
            norm = clip_grad_norm_(model.parameters(), 0.1)
            whole = norm.full_tensor()
        elif way == "whole":
            norm = get_total_norm([each.grad for each in model.parameters()]).full_tensor()
            clip_grads_with_norm_(model.parameters(), 0.1, norm)
            whole = norm
        else:
            whole = norm = model.clip_grad_norm_(0.1)
        own[way].append(whole.item())
        if "RECORDED" in os.environ:
            from rankwatch.automatic.values import values
            class Run:
                def scalar(self, name, value):
                    if name.startswith("gradient_norm"):
                        found[way].append(value)
            values.stepped(optimizer)
            values.write(Run())
        optimizer.step()
        optimizer.zero_grad()

found, own = ({each: [] for each in ("parts", "whole", "first")} for _ in range(2))
dist.init_process_group("gloo")
for way in found:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    if way == "first":
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        fully_shard(model)
    losses(model, torch.optim.SGD(model.parameters(), lr=0.5), way)
json.dump([found, own], open(HERE + f"/norms_{RANK}.json", "w"))
dist.destroy_process_group()
"""


def test_norms(tmp_path: Path) -> None:
    """The norm is what the loop itself sees, in FSDP 1 and 2, and the training stays the same.

    Releases of torch in which FSDP 2 leaves each rank a part of the norm show none for `clip_grad_norm_`.
    """
    boxes = run_program(PROGRAM, tmp_path / "with", ranks=2)
    run_program(PROGRAM, tmp_path / "without", ranks=2, recorded=False)
    for rank, box in enumerate(boxes):
        found, own = json.loads((tmp_path / "with" / f"norms_{rank}.json").read_text())
        assert found["parts"] in (own["parts"], [])
        assert (found["whole"], found["first"]) == (own["whole"], own["first"])
        assert json.loads((tmp_path / "without" / f"norms_{rank}.json").read_text())[1] == own
        assert errors(box) == 0
