"""Values of whole loops that know nothing of rankwatch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankwatch.blackbox.layout import RecordKind
from support.automatic.programs import errors, run_program
from support.training.blackbox import of_kind

pytest.importorskip("torch")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

SCALER = """
# Mixed precision: the loss is scaled, and a step whose gradients are not finite is skipped.
# Norms come in every way in which a loop has them: clipped, clipped afterwards, or only computed.
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm
from torch.utils.data import DataLoader, TensorDataset
import json
own = {"loss": [], "gradient_norm": [], "learning_rate": [], "loss_scale": []}
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
loader = DataLoader(TensorDataset(torch.randn(40, 8)), batch_size=5)
for number, (batch,) in enumerate(loader):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    if number == 4:
        loss = loss * float("inf")
    scaled = scaler.scale(loss)
    own["loss_scale"].append(scaler.get_scale())
    scaled.backward()
    scaler.unscale_(optimizer)
    if number % 3:
        norm = get_total_norm([each.grad for each in model.parameters()])
        if number % 3 == 1:
            clip_grads_with_norm_(model.parameters(), 0.1, norm)
    else:
        norm = clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    own["loss"].append(str(loss.item()))
    own["gradient_norm"].append(str(norm.item()))
    if number != 4:
        own["learning_rate"].append(schedule.get_last_lr()[0])
        schedule.step()
json.dump(own, open(HERE + "/own.json", "w"))
torch.save(model.state_dict(), HERE + "/final.pt")
"""


def test_scaler(tmp_path: Path) -> None:
    """Loss and norm are unscaled, also of the step that was skipped, and the scale is that of each step.
    Norms are seen in torch itself, also by imported names; the training is the same."""
    (box,) = run_program(SCALER, tmp_path / "with")
    run_program(SCALER, tmp_path / "without", recorded=False)
    assert (tmp_path / "with/final.pt").read_bytes() == (tmp_path / "without/final.pt").read_bytes()
    own = json.loads((tmp_path / "with/own.json").read_text())
    scalars = of_kind(box, RecordKind.SCALAR)
    found = {name: [each.payload for each in scalars if each.name == name] for name in own}
    for name, of in found.items():
        values = [value if name in ("loss_scale", "learning_rate") else str(value) for value, _ in of]
        steps = [step for _, step in of]
        assert (values, steps) == (own[name], sorted(set(steps))), name
    assert errors(box) == 0


RESUMED = """
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
model = torch.nn.Linear(2, 2)
def adam(): return torch.optim.Adam(model.parameters())
def train(optimizer):
    for batch in torch.utils.data.DataLoader(torch.ones(3, 2)):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
optimizer = adam()
train(optimizer)
state = get_optimizer_state_dict(model, optimizer)
resumed = adam()
set_optimizer_state_dict(model, resumed, state)
train(resumed)
"""


def test_resumed_state(tmp_path: Path) -> None:
    """torch steps a new optimizer before it loads the state of a distributed checkpoint."""
    (box,) = run_program(RESUMED, tmp_path)
    assert len(of_kind(box, RecordKind.STEP)) == 6
    assert errors(box) == 0


SHARDED_NORMS = """
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
    boxes = run_program(SHARDED_NORMS, tmp_path / "with", ranks=2)
    run_program(SHARDED_NORMS, tmp_path / "without", ranks=2, recorded=False)
    for rank, box in enumerate(boxes):
        found, own = json.loads((tmp_path / "with" / f"norms_{rank}.json").read_text())
        assert found["parts"] in (own["parts"], [])
        assert (found["whole"], found["first"]) == (own["whole"], own["first"])
        assert json.loads((tmp_path / "without" / f"norms_{rank}.json").read_text())[1] == own
        assert errors(box) == 0
