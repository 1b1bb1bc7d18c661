"""Loops that an exception leaves in the middle of a call, and that go on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset

import rankwatch.automatic
from rankwatch.automatic import loop as loops
from rankwatch.automatic.patches import optimization
from rankwatch.blackbox.layout import RecordKind
from support.training.blackbox import box, read
from support.training.recorded import Recorded

WAIT, PLAIN = "data_wait", ["forward", "backward", "optimizer"]
FORWARD, BACKWARD, OPTIMIZER = PLAIN


class Interrupted:
    """Raises KeyboardInterrupt once, when it is armed."""

    armed = False

    def __call__(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


class Rows(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(6):
            yield torch.ones(4)


class Step(torch.optim.SGD):
    interrupt: Callable[[], object] = staticmethod(lambda: None)

    def step(self, closure: Any = None) -> Any:
        self.interrupt()
        return super().step(closure)


@pytest.mark.parametrize("where", [WAIT, *PLAIN])
def test_interrupt(recorded: Recorded, where: str) -> None:
    """After Ctrl-C in any call, which the script catches, the steps that follow are recorded as always."""
    network, interrupt = nn.Linear(4, 1), Interrupted()
    optimizer = Step(network.parameters(), lr=0.1)
    if where == FORWARD:
        network.register_forward_pre_hook(interrupt)
    elif where == BACKWARD:
        next(network.parameters()).register_hook(interrupt)
    elif where == OPTIMIZER:
        optimizer.interrupt = interrupt  # type: ignore[method-assign]

    def collate(rows: list[Tensor]) -> Tensor:
        if where == WAIT:
            interrupt()
        return torch.stack(rows)

    for epoch in range(3):
        interrupt.armed = epoch == 1
        try:
            for batch in DataLoader(Rows(), batch_size=2, collate_fn=collate):
                network(batch).mean().backward()
                optimizer.step()
        except KeyboardInterrupt:
            assert epoch == 1
    steps = recorded.steps()
    assert steps[:3] == [[WAIT, *PLAIN]] * 3
    assert [each[-4:] for each in steps[-3:]] == [[WAIT, *PLAIN]] * 3
    assert len(steps) in (6, 7)
    assert recorded.backwards_in_time() == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(recorded: Recorded, reentrant: bool) -> None:
    """What the backward pass computes again is part of it: no forward pass, and no other step."""
    block, head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*block.parameters(), *head.parameters()], lr=0.1)

    class Model(nn.Module):
        def forward(self, batch: Tensor) -> Any:
            return head(checkpoint(block, batch, use_reentrant=reentrant))

    model = Model()
    for _ in range(3):
        model(torch.ones(2, 4, requires_grad=True)).mean().backward()
        optimizer.step()
    assert recorded.steps() == [PLAIN] * 3


def test_hooks_of_gradients(recorded: Recorded) -> None:
    """Hooks that call modules, and backward passes, inside of a backward pass belong to it."""
    network, other = nn.Linear(4, 1), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def hook(gradient: Tensor) -> None:
        with torch.enable_grad():
            other(torch.ones(1, 1)).sum().backward()

    network.weight.register_hook(hook)
    network.register_full_backward_hook(lambda *_: None)
    batch = torch.ones(2, 4, requires_grad=True)
    for _ in range(3):
        network(batch).mean().backward()
        optimizer.step()
    assert recorded.steps() == [PLAIN] * 3


HOME = Path(next(iter(rankwatch.automatic.__path__)))
PARTS = ("loop", "forward", "iterations", "waits", "evaluation", "threads")
"""Modules of the state machine."""


class Interrupting:
    """Raises KeyboardInterrupt at one line of the state machine: the n-th that is run."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        path = Path(frame.f_code.co_filename)
        if path.parent != HOME or path.stem not in PARTS:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def iterate(module: Any, optimizer: Any, batches: Any) -> None:
    """One iteration, as the patches report it."""
    loop = loops.current()
    began = loop.fetch_began()
    loop.fetch_ended(began, batches, None, None)
    if loop.forward_began(module):
        loop.forward_ended()
    if loop.backward_began(None):
        loop.backward_ended()
    optimization._step_began(optimizer, (), {})
    optimization._step_ended(optimizer, (), {})


def interrupted_at(number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Interrupt the second of five iterations at a line, and look at the others. False if it has no more."""
    run = rankwatch.start(
        run="loop", rank=0, world_size=1, directory=folder, flight_recorder=False, collectives=False,
        capacity=256,
    )  # fmt: skip
    assert isinstance(run, rankwatch.Run)
    loop = loops.Loop(lambda: run)
    monkeypatch.setattr(loops, "current", lambda: loop)
    module, batches = torch.nn.Linear(1, 1), Rows()
    optimizer = SimpleNamespace(param_groups=[{"params": [module.weight], "lr": 0.1}])
    arguments = (module, optimizer, batches)
    iterate(*arguments)
    interrupting, before = Interrupting(number), sys.gettrace()
    try:
        sys.settrace(interrupting)
        iterate(*arguments)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    for _ in range(3):
        iterate(*arguments)
    run.finish()
    records = read(box(folder))
    assert all(each.start <= each.end for each in records), number
    steps = [each for each in records if each.kind == RecordKind.STEP]
    phases = [each for each in records if each.kind == RecordKind.PHASE]
    assert len(steps) in (3, 4, 5), number
    for step in steps[-2:]:
        names = [each.name for each in phases if step.start <= each.start and each.end <= step.end]
        assert sorted(names) == sorted([WAIT, *PLAIN]), number
    return interrupting.left <= 0


def test_interrupt_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come at any line of the state machine itself: after the next iteration all is recorded."""

    def lines() -> int:
        number = 1
        while interrupted_at(number, tmp_path / str(number), monkeypatch):
            number += 1
        return number

    # A thread of its own: what is raised by a trace function inside of `except` stays the exception that the
    # thread handles (CPython 3.11), and would become the context of all that later tests raise.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lines).result() > 50
