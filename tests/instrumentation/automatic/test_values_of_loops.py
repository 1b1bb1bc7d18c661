"""Values, checkpoints and evaluations of whole loops that know nothing of rankwatch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankwatch.blackbox.layout import RecordKind
from support.automatic.programs import errors, operations, run_program
from support.training.blackbox import of_kind

pytest.importorskip("torch")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

_PARTS = """
import json
own = {"loss": [], "loss_2": [], "gradient_norm": [], "learning_rate": [], "loss_scale": [], "evaluation": []}
clock = time.monotonic
def linear(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(a, b), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers)
def finish(**models):
    json.dump(own, open(HERE + "/own.json", "w"))
    torch.save({name: each.state_dict() for name, each in models.items()}, HERE + "/final.pt")
"""

ACCUMULATION = """
# As nanoGPT: no data loader, accumulation over micro-batches, evaluation and checkpoint before the step.
model = linear(8, 16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
scaler = torch.amp.GradScaler("cpu", enabled=False)

@torch.no_grad()
def estimate_loss():
    began = clock()
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(5)
        for k in range(5):
            losses[k] = model(torch.randn(4, 8)).square().mean().item()
    model.train()
    own["evaluation"].append([began, clock()])

for iteration in range(9):
    if iteration % 4 == 0:
        estimate_loss()
        if iteration:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iteration}
            torch.save(state, HERE + "/ckpt.pt")
    total = torch.tensor(0.0)
    for micro in range(4):
        loss = model(torch.randn(4, 8)).square().mean() / 4
        total += loss.detach()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    own["gradient_norm"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    own["loss"].append(total.item())
    own["learning_rate"].append(schedule.get_last_lr()[0])
    schedule.step()
finish(model=model)
"""

SCALER = """
# Mixed precision: the loss is scaled, and a step whose gradients are not finite is skipped.
# Norms come in every way in which a loop has them: clipped, clipped afterwards, or only computed.
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm
from torch.utils.data import DataLoader, TensorDataset
model = linear(8, 16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
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
finish(model=model)
"""

GAN = """
# Two optimizers in a step; the generator first runs without gradient.
from torch.utils.data import DataLoader, TensorDataset
generator, critic = linear(4, 8), linear(8, 8, 1)
first = torch.optim.Adam(critic.parameters(), lr=0.01)
second = torch.optim.Adam(generator.parameters(), lr=0.02)
for (real,) in DataLoader(TensorDataset(torch.randn(24, 8)), batch_size=4):
    with torch.no_grad():
        fake = generator(torch.randn(4, 4))
    first.zero_grad()
    loss_real = (1 - critic(real)).square().mean()
    loss_real.backward()
    loss_fake = critic(fake).square().mean()
    loss_fake.backward()
    first.step()
    second.zero_grad()
    loss = (1 - critic(generator(torch.randn(4, 4)))).square().mean()
    loss.backward()
    second.step()
    own["loss"].append((loss_real + loss_fake).item())
    own["loss_2"].append(loss.item())
finish(generator=generator, critic=critic)
"""


def _run(program: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The black box, and what the loop itself saw."""
    (box,) = run_program(_PARTS + program, folder / "with")
    run_program(_PARTS + program, folder / "without", recorded=False)
    assert (folder / "with/final.pt").read_bytes() == (folder / "without/final.pt").read_bytes()
    assert errors(box) == 0
    return box, json.loads((folder / "with/own.json").read_text())


def _scalars(box: Path) -> dict[str, list[float]]:
    """Values of each name; every step has one."""
    found: dict[str, dict[int, float]] = {}
    for each in of_kind(box, RecordKind.SCALAR):
        value, step = each.payload
        assert step not in found.setdefault(each.name, {}), "one value in a step"
        found[each.name][int(step)] = value
    return {name: [of[step] for step in sorted(of)] for name, of in found.items()}


def _phases(box: Path, name: str) -> list[tuple[float, float]]:
    return [(each.start, each.end) for each in of_kind(box, RecordKind.PHASE) if each.name == name]


def test_accumulation(tmp_path: Path) -> None:
    """The loss is the sum over micro-batches; evaluations and checkpoints are as many as the loop made."""
    box, own = _run(ACCUMULATION, tmp_path)
    found = _scalars(box)
    for name in ("loss", "gradient_norm", "learning_rate"):
        assert found[name] == own[name], name
    evaluations = _phases(box, "evaluation")
    assert len(evaluations) == len(own["evaluation"]) == 3
    for (start, end), (began, ended) in zip(evaluations, own["evaluation"], strict=True):
        assert began <= start < end <= ended
    assert [(each.operation, each.step) for each in operations(box)] == [
        ("save", 3),
        ("save", 7),
        ("save", 8),
    ]


def test_scaler(tmp_path: Path) -> None:
    """Loss and norm are unscaled, also of the step that was skipped, and the scale is that of each step.
    Norms are seen in torch itself, also by imported names."""
    box, own = _run(SCALER, tmp_path)
    found = _scalars(box)
    for name in ("loss", "gradient_norm"):
        assert [str(each) for each in found[name]] == own[name], name
    assert found["loss_scale"] == own["loss_scale"]
    assert len(found["learning_rate"]) == len(own["loss"]) - 1


def test_gan(tmp_path: Path) -> None:
    """Each optimizer has its loss; the generator's pass without gradient is no evaluation."""
    box, own = _run(GAN, tmp_path)
    found = _scalars(box)
    assert (found["loss"], found["loss_2"]) == (own["loss"], own["loss_2"])
    assert (set(found["learning_rate"]), set(found["learning_rate_2"])) == ({0.01}, {0.02})
    assert _phases(box, "evaluation") == []


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
