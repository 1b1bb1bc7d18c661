"""Faults change the steps, data, gradients and checkpoints of a job."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import cast

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from rankwatch_trainer.faults import FaultFile, parse_fault
from rankwatch_trainer.injection import Injection


def injection(*texts: str, rank: int = 0, slept: list[float] | None = None) -> Injection:
    """Faults of a job with 4 ranks, as of step 1. Sleeps are appended to `slept` and take no time."""
    faults = [parse_fault(text, present_step=1, world_size=4) for text in texts]
    return Injection(rank, faults, sleep=([] if slept is None else slept).append)


def test_conditions_of_each_step() -> None:
    """Active faults multiply. A fault that has ended leaves no effect."""
    faults = injection("straggler:factor=2,from=2,until=4", "straggler:factor=3,from=3,until=4")
    assert [faults.conditions.compute_factor for _ in faults.steps(1, 4)] == [1.0, 2.0, 6.0, 1.0]


def test_slow_data() -> None:
    """The delay falls on the batch of the right step, because a step begins before its batch is loaded."""
    slept: list[float] = []
    faults = injection("slow-data:seconds=0.5,from=2,until=3", slept=slept)
    batches = faults.delayed(torch.zeros(1) for _ in range(3))
    delays = [len(slept) for _ in zip(faults.steps(1, 3), batches, strict=False)]
    assert delays == [0, 1, 1]
    assert slept == [0.5]


def test_stuck_data() -> None:
    """The batch never arrives. The rank sleeps repeatedly, each time for a finite duration."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise InterruptedError

    faults = Injection(0, [parse_fault("stuck-data:from=2", present_step=1, world_size=4)], sleep=sleep)
    batches = faults.delayed(torch.zeros(1) for _ in range(3))
    with pytest.raises(InterruptedError):
        for _ in zip(faults.steps(1, 3), batches, strict=False):
            assert not slept, "the batch of step 1 comes at once"
    assert all(0 < seconds < math.inf for seconds in slept)


@pytest.mark.parametrize("fault", ["skip-collective", "mismatched-collective"])
def test_gradients_not_reduced(fault: str) -> None:
    """DDP reduces gradients only in the last backward pass of a step. The fault prevents it in its step."""

    class Model:
        """Has what DDP has for a backward without a reduction."""

        def no_sync(self) -> AbstractContextManager[None]:
            return quiet

    quiet = nullcontext()
    faults = injection(f"{fault}:from=2")
    model = cast(DistributedDataParallel, Model())
    seen = [
        [faults.reduction(model, last=last) is quiet for last in (False, True)] for _ in faults.steps(1, 3)
    ]
    assert seen == [[True, False], [True, True], [True, False]]


def test_stall() -> None:
    """A stall of limited duration happens once per step, not once per micro-batch."""
    slept: list[float] = []
    faults = injection("stall:seconds=9,from=1", slept=slept)
    for _ in faults.steps(1, 2):
        faults.strike(torch.ones(()))
        faults.strike(torch.ones(()))
    assert slept == [9.0]


def test_loss_blowup() -> None:
    """The learning rate of the step is multiplied, by default by 100."""
    optimizer = torch.optim.SGD([torch.ones((), requires_grad=True)], lr=0.5)
    faults = injection("loss-blowup:from=2")
    steps = faults.steps(1, 2)
    next(steps)
    faults.raise_learning_rate(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.5
    next(steps)
    faults.raise_learning_rate(optimizer)
    assert optimizer.param_groups[0]["lr"] == 50.0


def test_checkpoint_corruption(tmp_path: Path) -> None:
    """The file keeps its length, so that only a checksum detects the damage."""
    faults = injection("checkpoint-corruption:until=2")
    steps = faults.steps(1, 2)
    contents = []
    for _ in steps:
        faults.write_file(tmp_path / "state", bytes(100))
        contents.append((tmp_path / "state").read_bytes())
    assert contents[0] != bytes(100) and len(contents[0]) == 100
    assert contents[1] == bytes(100)


def test_fault_file(tmp_path: Path) -> None:
    """A fault takes effect in the step after its line was written."""
    faults = Injection(0, (), FaultFile(tmp_path / "faults", 4))
    seen = []
    for step in faults.steps(1, 3):
        seen.append(faults.conditions.compute_factor)
        if step == 1:
            (tmp_path / "faults").write_text("straggler:rank=0,factor=4\n")
    assert seen == [1.0, 4.0, 4.0]


def jitter(rank: int, first: int, last: int, slept: list[float], every: int = 5) -> list[int]:
    """The steps in which a rank pauses, once for each pause."""
    faults, struck = injection(f"jitter:seconds=0.3,every={every}", rank=rank, slept=slept), []
    for step in faults.steps(first, last):
        before = len(slept)
        faults.strike(torch.ones(()))
        faults.strike(torch.ones(()))
        struck += [step] * (len(slept) - before)
    return struck


def test_jitter() -> None:
    """About one step of `every` has one pause. A resumed run pauses in the same steps."""
    slept: list[float] = []
    whole, resumed = jitter(0, 1, 200, slept), jitter(0, 101, 200, slept)
    assert set(slept) == {0.3}
    assert 25 <= len(whole) == len({*whole}) <= 55
    assert resumed == [step for step in whole if step > 100]


def test_jitter_differs_by_rank() -> None:
    """If all ranks paused in the same steps, no rank would wait for another."""
    one, other = (jitter(rank, 1, 60, [], every=3) for rank in range(2))
    assert one and other and one != other


def test_unequal_batches() -> None:
    """Lengths lie between a quarter of the context and all of it. Each rank draws its own."""
    text = torch.arange(34).view(2, 17)
    lengths = {}
    for rank in range(2):
        faults = injection("unequal-batches:ratio=4,until=101", rank=rank)
        cut = [faults.cut(text) for _ in faults.steps(1, 101)]
        assert all(torch.equal(each, text[:, : each.shape[1]]) for each in cut)
        assert cut.pop() is text, "the fault is over"
        lengths[rank] = [each.shape[1] - 1 for each in cut]
        assert (min(lengths[rank]), max(lengths[rank])) == (4, 16)
    assert lengths[0] != lengths[1]


def test_flip_bit() -> None:
    """One bit of one element of the named rank changes, in one step."""
    for rank, expected in ((1, 1), (0, 0)):
        struck = injection("flip-bit:rank=1,from=2", rank=rank)
        parameter = torch.nn.Parameter(torch.ones(4, 3))
        for _ in struck.steps(1, 3):
            struck.flip_bit([parameter])
        bits = parameter.detach().view(torch.int32) ^ torch.ones(4, 3).view(torch.int32)
        assert bits.sum().item() == expected


def test_gradient_explosion() -> None:
    """Gradients that are there grow, in these steps only."""
    struck = injection("gradient-explosion:factor=8,from=2,until=3")
    parameters = [torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)]
    norms = []
    for _ in struck.steps(1, 3):
        parameters[0].grad = torch.ones(2)
        struck.enlarge(parameters)
        norms.append(parameters[0].grad.tolist())
    assert norms == [[1.0, 1.0], [8.0, 8.0], [1.0, 1.0]]
    assert parameters[1].grad is None


def test_foreign_data() -> None:
    """One rank is given other bytes, of the same shape; its peer keeps the text."""
    text = torch.zeros(4, 33, dtype=torch.long)
    for rank in range(2):
        struck = injection("foreign-data:rank=1", rank=rank)
        next(struck.steps(1, 1))
        cut = struck.cut(text)
        assert cut.shape == text.shape
        assert bool(cut.any()) == (rank == 1)
        assert 0 <= int(cut.min()) <= int(cut.max()) < 256
