"""Zero-code recording beside torch.compile, and beside what saves whole modules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankwatch.blackbox.layout import RecordKind
from support.automatic.programs import errors, run_program
from support.processes.python import python
from support.training.blackbox import of_kind

pytest.importorskip("torch")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

STEPS, KINDS = 4, ("function", "module", "in place", "after a step", "part", "optimizer", "whole")
COMPILED = """
import gc, json
from torch import nn
from torch._dynamo.utils import counters

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 1)
    def forward(self, x):
        return self.last(self.first(x))

def trained(kind):
    torch.manual_seed(0)
    torch._dynamo.reset()
    counters.clear()
    gc.collect()  # the optimizer of a model that is gone is not waited for
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    def compiled(what): return torch.compile(what, backend="eager", fullgraph=True)
    model = net
    if kind == "after a step":
        net(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    if kind in ("module", "after a step"):
        model = compiled(net)
    elif kind == "in place":
        net.compile(backend="eager", fullgraph=True)
    elif kind == "part":
        net.first = compiled(net.first)
    def loss_of(x): return model(x).mean()
    loss = compiled(loss_of) if kind == "function" else loss_of
    update = torch.compile(optimizer.step, backend="eager") if kind == "optimizer" else optimizer.step
    def step(x):
        value = loss(x)
        value.backward()
        update()
        return value
    step = torch.compile(step, backend="eager") if kind == "whole" else step
    losses = [step(torch.ones(2, 8)).item() for _ in range(4)]
    breaks = kind not in ("optimizer", "whole") and counters["graph_break"]
    return losses, dict(counters["stats"]), sum(counters["recompiles"].values()), bool(breaks)

kinds = ("function", "module", "in place", "after a step", "part", "optimizer", "whole")
json.dump([trained(kind) for kind in kinds], open(HERE + "/compiled.json", "w"))
"""


def test_compiled(tmp_path: Path) -> None:
    """Whatever is compiled: the graphs, their number and the losses are the same as without recording. The
    compiler does not look into rankwatch, and each step is seen."""
    (box,) = run_program(COMPILED, tmp_path / "with")
    run_program(COMPILED, tmp_path / "without", recorded=False)
    found, expected = (
        json.loads((tmp_path / each / "compiled.json").read_text()) for each in ("with", "without")
    )
    assert found == expected
    assert not any(breaks for *_, breaks in found)
    assert len(of_kind(box, RecordKind.STEP)) == STEPS * len(KINDS) + 1
    assert errors(box) == 0


SAVED = """
from ray import cloudpickle

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.layer(x)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.ones(2, 4)).mean().backward()
    optimizer.step()
open(HERE + "/net.pickle", "wb").write(cloudpickle.dumps(net))
"""
LOADED = """
import pickle, sys
sys.modules["rankwatch"] = None
import torch
net = pickle.load(open(sys.argv[1], "rb"))
print(net(torch.ones(2, 4)).shape[0])
"""


@pytest.mark.frameworks
@pytest.mark.nightly
def test_class_saved_by_value(tmp_path: Path) -> None:
    """A trained module of a script, saved with its class by cloudpickle, loads without rankwatch."""
    pytest.importorskip("ray.cloudpickle")
    run_program(SAVED, tmp_path)
    done = python(LOADED, str(tmp_path / "net.pickle"), PYTHONPATH="")
    assert done.stdout.strip() == "2", done.stderr
