"""Steps and phases of loops that call nothing of rankwatch, with real torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from support.training.recorded import Recorded

pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: N812

from rankwatch.automatic import loop, phases
from rankwatch.automatic.visibility import Visibility
from rankwatch.conventions.vocabulary import Capability, Unseen

FORWARD, BACKWARD, OPTIMIZER, WAIT = "forward", "backward", "optimizer", "data_wait"
PLAIN = [FORWARD, BACKWARD, OPTIMIZER]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


def loss_of(network: nn.Module) -> Tensor:
    loss: Tensor = network(torch.ones(2, 4)).square().mean()
    return loss


def loader(batches: int = 3) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(2 * batches, 4)), batch_size=2)


def sgd(network: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(network.parameters(), lr=0.1)


def train(network: nn.Module, optimizer: torch.optim.Optimizer, batches: int = 3) -> None:
    """A plain loop over a data loader."""
    for (batch,) in loader(batches):
        optimizer.zero_grad()
        network(batch).mean().backward()
        optimizer.step()


def test_plain_loop(recorded: Recorded) -> None:
    """Each batch is a step that begins with the wait for it."""
    train(network := model(), sgd(network))
    assert recorded.steps() == [[WAIT, *PLAIN]] * 3


def test_accumulation(recorded: Recorded) -> None:
    """Several batches make one step."""
    network = model()
    optimizer = sgd(network)
    for number, (batch,) in enumerate(loader(4)):
        network(batch).mean().backward()
        if number % 2:
            optimizer.step()
    assert recorded.steps() == [[WAIT, FORWARD, BACKWARD, WAIT, *PLAIN]] * 2


def test_no_loader(recorded: Recorded) -> None:
    """Without a data loader a step ends where training goes on."""
    network = model()
    optimizer = sgd(network)
    for _ in range(4):
        loss_of(network).backward()
        optimizer.step()
    assert recorded.steps() == [PLAIN] * 4


@pytest.mark.parametrize("with_loader", [True, False])
def test_gan(recorded: Recorded, with_loader: bool) -> None:
    """Two optimizers in one iteration make one step, with and without a loader."""
    networks = [model(), model()]
    optimizers = [sgd(each) for each in networks]
    for _ in loader() if with_loader else range(3):
        for network, optimizer in zip(networks, optimizers, strict=True):
            loss_of(network).backward()
            optimizer.step()
    assert recorded.steps() == [([WAIT] if with_loader else []) + PLAIN * 2] * 3


def closure(network: nn.Module, optimizer: Any, steps: int) -> None:
    def compute() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(network)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(compute)


def test_closure(recorded: Recorded) -> None:
    """Forward and backward lie inside of the optimizer's step, as Lightning has it."""
    closure(network := model(), sgd(network), 3)
    assert recorded.steps() == [[OPTIMIZER, FORWARD, BACKWARD]] * 3


def test_lbfgs(recorded: Recorded) -> None:
    """An optimizer that calls its closure many times makes one step."""
    network = model()
    closure(network, torch.optim.LBFGS(network.parameters(), max_iter=3), 2)
    steps = recorded.steps()
    assert len(steps) == 2
    assert all(each[0] == OPTIMIZER and each.count(OPTIMIZER) == 1 for each in steps)


def muon_and_adam(network: Any) -> Callable[[], object]:
    first, last = torch.optim.SGD(network[0].parameters(), lr=0.1), torch.optim.Adam(network[2].parameters())
    return lambda: (first.step(), last.step())


def test_batches_for_each_optimizer(recorded: Recorded) -> None:
    """A GAN that fetches a batch for each of its two optimizers makes one step of both, from the first one
    on, also where a function fetches and an evaluation comes between."""
    networks = [model(), model()]
    optimizers = [sgd(each) for each in networks]
    batches, evaluated = iter(loader(20)), loader(2)

    def fetch() -> Tensor:
        batch: Tensor = next(batches)[0]
        return batch

    for number in range(6):
        networks[0](fetch()).mean().backward()
        optimizers[0].step()
        networks[1](fetch()).mean().backward()
        optimizers[1].step()
        if number in (0, 3):
            with torch.no_grad():
                for (batch,) in evaluated:
                    networks[1].eval()(batch)
                networks[1].train()
    assert recorded.steps() == [[WAIT, *PLAIN] * 2] * 6


def test_optimizers_in_turn(recorded: Recorded) -> None:
    """Where each batch trains one of two models in turn, each batch is an iteration of the loop: a step."""
    networks = [model(), model()]
    optimizers = [sgd(each) for each in networks]
    for number, (batch,) in enumerate(loader(6)):
        networks[number % 2](batch).mean().backward()
        optimizers[number % 2].step()
    assert recorded.steps() == [[WAIT, *PLAIN]] * 6


@pytest.mark.parametrize("with_loader", [True, False])
def test_models_one_after_the_other(recorded: Recorded, with_loader: bool) -> None:
    """Five models that are trained in sequence, all of which the script keeps, have all their steps."""
    networks = [model() for _ in range(5)]
    for network in networks:
        optimizer = sgd(network)
        for _ in loader(4) if with_loader else range(4):
            loss_of(network).backward()
            optimizer.step()
    assert recorded.steps() == [([WAIT] if with_loader else []) + PLAIN] * 20


def test_optimizer_that_joins_later(recorded: Recorded) -> None:
    """Without a loader an optimizer that joins a loop adds one step in all, and begins each step from then
    on: it might as well have begun another training."""
    networks = [model(), model()]
    optimizers = [sgd(each) for each in networks]
    for number in range(6):
        for network, optimizer in list(zip(networks, optimizers, strict=True))[: 1 + number // 3]:
            loss_of(network).backward()
            optimizer.step()
    assert recorded.steps() == [PLAIN] * 4 + [PLAIN * 2] * 2 + [PLAIN]


class OwnStep(torch.optim.SGD):
    """A subclass with its own `step`."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for each in group["params"]:
                each.data.add_(each.grad, alpha=-0.1)


class Extended(torch.optim.SGD):
    """A subclass whose `step` calls that of its base class."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Wrapping(torch.optim.Optimizer):
    """An optimizer around another one."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups[0]["params"], {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        self.inner.step()


CASES: dict[str, Callable[[Any], Callable[[], object]]] = {
    "for each": lambda net: torch.optim.SGD(net.parameters(), lr=0.1, foreach=False).step,
    "foreach": lambda net: torch.optim.AdamW(net.parameters(), foreach=True).step,
    "fused": lambda net: torch.optim.AdamW(net.parameters(), fused=True).step,
    "own step": lambda net: OwnStep(net.parameters(), lr=0.1).step,
    "extended step": lambda net: Extended(net.parameters(), lr=0.1).step,
    "nested": lambda net: Wrapping(torch.optim.SGD(net.parameters(), lr=0.1)).step,
    "several": muon_and_adam,
    "new for each step": lambda net: lambda: torch.optim.SGD(net.parameters(), lr=0.1).step(),
}


@pytest.mark.parametrize("case", CASES)
def test_optimizers(recorded: Recorded, case: str) -> None:
    """Every kind of optimizer makes one step of each iteration."""
    network = model()
    step = CASES[case](network)
    for _ in range(3):
        loss_of(network).backward()
        step()
    assert [list(dict.fromkeys(each)) for each in recorded.steps()] == [PLAIN] * 3


@pytest.mark.parametrize("fused", [False, True])
def test_skipped_steps(recorded: Recorded, fused: bool) -> None:
    """An iteration whose step a gradient scaler skips is a step all the same, and recorded as skipped, also
    where the optimizer itself finds out."""
    network = model()
    optimizer = torch.optim.AdamW(network.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for number in range(4):
        optimizer.zero_grad()
        factor = float("inf") if number == 1 else 1.0
        scaler.scale(loss_of(network) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert [list(dict.fromkeys(each)) for each in recorded.steps()] == [PLAIN] * 4
    skipped = [each.payload for each in recorded.records() if each.name == "update_skipped"]
    assert skipped == [(0.0, 0), (1.0, 1), (0.0, 2), (0.0, 3)]


def test_optimizers_inside_backward(recorded: Recorded) -> None:
    """One optimizer for each parameter, stepping as soon as its gradient is there: one step each backward."""
    network = model()
    for each in network.parameters():
        step = torch.optim.SGD([each], lr=0.1).step
        each.register_post_accumulate_grad_hook(lambda _, step=step: step())
    for _ in range(3):
        loss_of(network).backward()
    assert recorded.steps() == [[FORWARD, BACKWARD]] * 3


@pytest.mark.parametrize("same", [True, False])
def test_failed_step(recorded: Recorded, same: bool) -> None:
    """An exception of the optimizer reaches the loop; the next step is recorded as always. A loop that lacks
    memory may go on with a new model and optimizer, whose steps count."""
    network = model()
    optimizer = sgd(network)
    with pytest.raises(MemoryError):
        optimizer.step(Mock(side_effect=MemoryError))
    if not same:
        network = model()
        optimizer = sgd(network)
    train(network, optimizer, 2)
    assert [each[-4:] for each in recorded.steps()] == [[WAIT, *PLAIN]] * 2


def test_double_backward(recorded: Recorded) -> None:
    """A gradient penalty calls `autograd.grad`, and a retained graph is used twice: still one step."""
    network = model()
    optimizer = sgd(network)
    for (batch,) in loader(2):
        loss = F.mse_loss(network(batch), torch.zeros(2, 1))
        (gradient,) = torch.autograd.grad(loss, network[0].weight, create_graph=True)  # type: ignore[index]
        loss.backward(retain_graph=True)
        (loss + gradient.square().sum()).backward()
        optimizer.step()
    assert recorded.steps() == [[WAIT, FORWARD, BACKWARD, BACKWARD, OPTIMIZER]] * 2


class Late(nn.Linear):
    """A module of a class that no other test uses."""


def test_model_of_another_class(recorded: Recorded) -> None:
    """A model of a class that is first called late has a forward phase from its second step on."""
    for network, steps in ((model(), 5), (Late(4, 1), 3)):
        train(network, sgd(network), steps)
    assert recorded.steps() == [[WAIT, *PLAIN]] * 5 + [[WAIT, BACKWARD, OPTIMIZER]] + [[WAIT, *PLAIN]] * 2


@pytest.mark.parametrize("with_loader", [True, False])
def test_one_evaluation(recorded: Recorded, with_loader: bool) -> None:
    """An evaluation right after a step is one, although only its first pass shows that the step is over."""
    network = model()
    optimizer = sgd(network)
    for number in range(6):
        loss_of(network).backward()
        optimizer.step()
        if number % 3 < 2:
            continue
        network.eval()
        with torch.no_grad():
            for (batch,) in loader(3) if with_loader else [(torch.ones(2, 4),)] * 3:
                network(batch)
        network.train()
    records = recorded.records()
    assert len([each for each in records if each.kind.name == "STEP"]) == 6
    assert len([each for each in records if each.name == "evaluation"]) == 2


def test_functions_instead_of_modules(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that calls no module has no forward phase, and says so; its steps are as exact as others."""
    states = Visibility()
    for each in (loop, phases):
        monkeypatch.setattr(each, "visibility", states)
    monkeypatch.setattr(states, "cannot_see", lambda *what: said.append(what))
    said: list[Any] = []
    weight = nn.Parameter(torch.ones(4, 1))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for (batch,) in loader(24):
        (batch @ weight).mean().backward()
        optimizer.step()
    assert recorded.steps() == [[WAIT, BACKWARD, OPTIMIZER]] * 24
    assert said == [(Capability.FORWARD, Unseen.NOT_CALLED)]


class SelfTraining(nn.Module):
    """Trains a critic and a generator whenever it is called. returns_loss: as `training_step` often does."""

    def __init__(self, *, returns_loss: bool) -> None:
        super().__init__()
        self.networks = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
        self.optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in self.networks]
        self.returns_loss = returns_loss

    def forward(self, batch: Tensor) -> Any:
        for network, optimizer in zip(self.networks, self.optimizers, strict=True):
            loss = network(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss if self.returns_loss else None


@pytest.mark.parametrize("returns_loss", [True, False])
def test_self_training_module(recorded: Recorded, returns_loss: bool) -> None:
    """Each backward pass ends the forward pass that it lies in; no phase overlaps another one or the step's
    end, although the outer call returns after all of them."""
    module = SelfTraining(returns_loss=returns_loss)
    for (batch,) in loader():
        module(batch)
    assert recorded.steps() == [[WAIT, *PLAIN, *PLAIN]] * 3
    assert recorded.backwards_in_time() == []
