"""Fingerprints in the black box, from jobs of several gloo ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import rankwatch
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions.vocabulary import Capability, Unseen
from support.automatic.programs import errors, run_program
from support.training.blackbox import Read, box, now, of_kind

MODEL = """
import json
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def build(size=16):
    return torch.nn.Sequential(torch.nn.Linear(8, size), torch.nn.BatchNorm1d(size), torch.nn.Linear(size, 1))

def train(model, steps, forward=None, flip=-1, accumulate=1):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number in range(steps):
        for _ in range(accumulate):
            loss = (model if forward is None else forward)(torch.randn(4, 8)).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == flip and RANK == 2:
            with torch.no_grad():
                next(model.parameters()).view(torch.int32)[0, 0] ^= 1
    return [each.tolist() for each in model.parameters()]

dist.init_process_group("gloo")
torch.manual_seed(RANK)
"""


def totals(path: Path) -> dict[int, tuple[str, tuple[float, ...]]]:
    """Step -> ranks that must be equal and the two sums over all parameters."""
    return {
        int(each.payload[0]): (each.name, each.payload[1:3])
        for each in of_kind(path, RecordKind.FINGERPRINT)
        if each.payload[4] == 0
    }


def capability(path: Path) -> Unseen | None:
    return now(path).capabilities[Capability.REPLICAS]


@pytest.mark.process
@pytest.mark.timeout(300)
def test_flipped_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four replicas are equal until one bit of one of them is flipped. Training itself does not change."""
    monkeypatch.setenv("RANKWATCH_FINGERPRINT_STEPS", "4")
    program = MODEL + "json.dump(train(DDP(build()), 12, flip=5), open(HERE + f'/{RANK}.json', 'w'))"
    boxes = run_program(program, tmp_path / "with", ranks=4)
    run_program(program, tmp_path / "without", ranks=4, recorded=False)
    found = [totals(each) for each in boxes]
    assert [sorted(each) for each in found] == [[0, 4, 8]] * 4
    for step in (0, 4):
        assert len({each[step] for each in found}) == 1
    assert found[0][8] == found[1][8] == found[3][8] != found[2][8]
    assert {name for each in found for name, _ in each.values()} == {"0-3"}
    for rank, path in enumerate(boxes):
        assert (capability(path), errors(path)) == (None, 0)
        own = [(tmp_path / way / f"{rank}.json").read_text() for way in ("with", "without")]
        assert own[0] == own[1]


LOOPS = {
    "accumulated": """
model = DDP(build())
def step():
    with model.no_sync():
        model(torch.randn(4, 8)).square().mean().backward()
    return model(torch.randn(4, 8)).square().mean()
""",
    "frozen and tied": """
class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out, self.frozen = (torch.nn.Linear(8, 8) for _ in range(3))
        self.out.weight = self.into.weight
        self.frozen.requires_grad_(False)
        self.mask = torch.nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)
        self.empty = torch.nn.Parameter(torch.zeros(0))
    def forward(self, x):
        return self.out(self.frozen(self.into(x))) + self.empty.sum()
model = DDP(Tied())
def step():
    return model(torch.randn(4, 8)).square().mean()
""",
    "compiled": """
model = DDP(build())
compiled = torch.compile(model)
def step():
    return compiled(torch.randn(4, 8)).square().mean()
""",
}
LOOP = """
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.01)
losses = []
for _ in range(50):
    loss = step()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
json.dump(losses, open(HERE + f'/{RANK}.json', 'w'))
"""


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("loop", LOOPS)
def test_losses_do_not_change(loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty losses are the same, bit by bit, with a fingerprint after each step and with none at all.

    So are the gradient norms of the ranks, after the all-reduce.
    """
    if loop == "compiled" and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler")
    losses = []
    for every in ("1", "0"):
        monkeypatch.setenv("RANKWATCH_FINGERPRINT_STEPS", every)
        boxes = run_program(MODEL + LOOPS[loop] + LOOP, tmp_path / every, ranks=2)
        losses.append([(tmp_path / every / f"{rank}.json").read_text() for rank in range(2)])
        found = [totals(each) for each in boxes]
        assert [errors(each) for each in boxes] == [0, 0]
        assert found[0] == found[1]
        scalars = [of_kind(path, RecordKind.SCALAR) for path in boxes]
        norms = [[each.payload for each in of if each.name == "gradient_norm"] for of in scalars]
        assert norms[0] == norms[1]
        assert len(norms[0]) == 50
        assert len(found[0]) == (50 if every == "1" else 0)
    assert losses[0] == losses[1]


HEALTHY = (
    MODEL
    + """
import contextlib
ddp = DDP(build())
train(ddp, 10, accumulate=2)
compiled = DDP(build(8))
train(compiled, 10, torch.compile(compiled, backend="eager"))
amp = DDP(build(4))
with torch.autocast("cpu", dtype=torch.bfloat16):
    train(amp, 10)
"""
)


@pytest.mark.process
@pytest.mark.timeout(300)
def test_healthy_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accumulation, BatchNorm's buffers, torch.compile and AMP leave replicas equal in every step."""
    monkeypatch.setenv("RANKWATCH_FINGERPRINT_STEPS", "1")
    found = [totals(each) for each in run_program(HEALTHY, tmp_path, ranks=2)]
    assert found[0] == found[1]
    assert len(found[0]) >= 29


SHARDED = (
    MODEL
    + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
import rankwatch

run = recording.opened()
torch.manual_seed(0)  # fully_shard, unlike DDP, makes nothing equal
model = build()
if HOW == "hybrid":
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s")))
elif HOW == "fsdp2":
    fully_shard(model)
elif HOW == "fsdp1":
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for number in range(10):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    run.fingerprint(model)
    losses.append(loss.item())
json.dump(losses, open(HERE + f'/{RANK}.json', 'w'))
"""
)


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("how", "expected"), [("hybrid", None), ("fsdp2", Unseen.SHARDED), ("fsdp1", Unseen.SHARDED)]
)
def test_sharded(how: str, expected: Unseen | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With HSDP the ranks with the same shard are compared; other sharded parameters have no replica.

    The losses are the same, bit by bit, with and without.
    """
    program = SHARDED.replace("HOW ==", f"{how!r} ==")
    ranks = 4 if how == "hybrid" else 2
    losses = []
    for every in ("0", "1"):
        monkeypatch.setenv("RANKWATCH_FINGERPRINT_STEPS", every)
        boxes = run_program(program, tmp_path / every, ranks=ranks)
        losses.append([(tmp_path / every / f"{rank}.json").read_text() for rank in range(ranks)])
    assert losses[0] == losses[1]
    assert [errors(each) for each in boxes] == [0] * ranks
    assert [capability(each) for each in boxes] == [expected] * len(boxes)
    found = [totals(each) for each in boxes]
    if how == "hybrid":
        assert [each[2][0] for each in found] == ["0,2", "1,3", "0,2", "1,3"]
        assert found[0] == found[2] != found[1] == found[3]
    else:
        assert found == [{}, {}]


def test_groups_and_cost(run: rankwatch.Run, tmp_path: Path) -> None:
    """Each group of parameters has a record of its own, with the name of its first parameter."""
    records = _fingerprint(run, tmp_path, world=2)
    groups = [each for each in records if each.payload[4]]
    (total,) = [each for each in records if not each.payload[4]]
    assert total.name == "0-1"
    assert total.end > total.start
    assert sum(int(each.payload[1]) for each in groups) % 2**64 == total.payload[1]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_unusual_parameters(run: rankwatch.Run, tmp_path: Path) -> None:
    """What has no plain bits is left out; all else is read, of whatever type and size. Nothing fails."""
    run.identity = run.identity._replace(world_size=2)
    plain = [torch.ones(3, dtype=each) for each in (torch.int8, torch.bool, torch.complex64, torch.bfloat16)]
    plain += [torch.zeros(0), torch.tensor(1.0), torch.ones(5).to(torch.float8_e4m3fn)]
    plain += [torch.ones(4).expand(3, 4)]
    odd = [torch.ones(4, device="meta"), torch.eye(3).to_sparse()]
    odd += [torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)]
    for step, given in ((0, plain), (100, plain + odd), (200, odd), (300, [torch.zeros(0)]), (400, [])):
        with run.step(step):
            run.fingerprint(given)
    found = totals(box(tmp_path))
    assert sorted(found) == [0, 100]
    assert found[0] == found[100]
    assert errors(box(tmp_path)) == 0


def test_model_that_changes(run: rankwatch.Run, tmp_path: Path) -> None:
    """Parameters may come, go and change their type between two fingerprints."""
    run.identity = run.identity._replace(world_size=2)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    for number in range(12):
        with run.step(number * 100):
            run.fingerprint(model)
        if number == 3:
            model[0] = torch.nn.Linear(4, 9)
        elif number == 5:
            model.to(torch.bfloat16)
        else:
            model.append(torch.nn.Linear(4, number + 1))
    assert sorted(totals(box(tmp_path))) == list(range(0, 1200, 100))
    assert errors(box(tmp_path)) == 0


def test_one_replica(run: rankwatch.Run, tmp_path: Path) -> None:
    """A single process has nobody to be equal to."""
    assert _fingerprint(run, tmp_path, world=1) == []
    assert capability(box(tmp_path)) is Unseen.ONE_REPLICA


def _fingerprint(run: rankwatch.Run, directory: Path, *, world: int) -> list[Read]:
    run.identity = run.identity._replace(world_size=world)
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(20)))
    for number in range(3):
        with run.step(number):
            run.fingerprint(model)
            run.fingerprint(model)
    return of_kind(box(directory), RecordKind.FINGERPRINT)


def test_failure_does_not_reach_training(run: rankwatch.Run, tmp_path: Path) -> None:
    """What cannot be read is counted; after three failures nothing is read any more."""
    for number in range(0, 1000, 100):
        with run.step(number):
            run.fingerprint(3)
    assert errors(box(tmp_path)) == 3
    assert capability(box(tmp_path)) is Unseen.HOOK_FAILED


def test_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWATCH_FINGERPRINT_STEPS", "0")
    run = rankwatch.start(run="r", directory=tmp_path)
    with run.step():
        run.fingerprint(torch.nn.Linear(1, 1))
    run.finish()
    assert capability(box(tmp_path)) is Unseen.OFF
    assert of_kind(box(tmp_path), RecordKind.FINGERPRINT) == []
