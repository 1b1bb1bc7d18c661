"""Where faults strike."""

from __future__ import annotations

import errno
import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import cast

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from rankwatch_trainer.faults.file import FaultFile
from rankwatch_trainer.faults.injection import Injection
from rankwatch_trainer.faults.specification import parse_fault


def injection(*texts: str, rank: int = 0, slept: list[float] | None = None) -> Injection:
    """Faults from step 1 in a job of 4 ranks; sleeps are noted, not slept."""
    faults = [parse_fault(text, present_step=1, world_size=4) for text in texts]
    return Injection(rank, faults, sleep=([] if slept is None else slept).append)


def test_the_conditions_are_those_of_the_present_step() -> None:
    """A fault that has ended leaves nothing behind."""
    faults = injection("straggler:factor=2,from=2,until=4", "straggler:factor=3,from=3,until=4")
    assert [faults.conditions.compute_factor for _ in faults.steps(1, 4)] == [1.0, 2.0, 6.0, 1.0]


def test_a_rank_is_spared_the_faults_of_another() -> None:
    """Only the named rank is struck."""
    faults = injection("straggler:rank=2,factor=2", rank=1)
    assert [faults.conditions.compute_factor for _ in faults.steps(1, 2)] == [1.0, 1.0]


def test_slow_data_delays_the_batch_of_the_steps_it_is_active_in() -> None:
    """The step is drawn before its batch, so the delay falls on the right one."""
    slept: list[float] = []
    faults = injection("slow-data:seconds=0.5,from=2,until=3", slept=slept)
    batches = faults.delayed(torch.zeros(1) for _ in range(3))
    delays = [len(slept) for _ in zip(faults.steps(1, 3), batches, strict=False)]
    assert delays == [0, 1, 1]
    assert slept == [0.5]


def test_data_that_is_stuck_never_comes() -> None:
    """The rank sleeps again and again, for less than infinity each time."""
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
def test_a_rank_out_of_line_keeps_its_gradients_in_that_step_only(fault: str) -> None:
    """The last backward of a step reduces them otherwise, and no other one does."""

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


def test_a_stall_with_an_end_happens_once_in_its_step() -> None:
    """Not once per micro-batch."""
    slept: list[float] = []
    faults = injection("stall:seconds=9,from=1", slept=slept)
    for _ in faults.steps(1, 2):
        faults.strike(torch.ones(()))
        faults.strike(torch.ones(()))
    assert slept == [9.0]


def test_loss_nan_reaches_the_gradients() -> None:
    """The value is lost before the backward."""
    weight = torch.ones((), requires_grad=True)
    faults = injection("loss-nan:from=1")
    next(faults.steps(1, 1))
    loss = faults.strike(weight * 2)
    loss.backward()
    assert loss.isnan()
    assert weight.grad is not None and weight.grad.isnan()


def test_loss_blowup_multiplies_the_learning_rate_of_the_step() -> None:
    """By a hundred, unless told otherwise."""
    optimizer = torch.optim.SGD([torch.ones((), requires_grad=True)], lr=0.5)
    faults = injection("loss-blowup:from=2")
    steps = faults.steps(1, 2)
    next(steps)
    faults.raise_learning_rate(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.5
    next(steps)
    faults.raise_learning_rate(optimizer)
    assert optimizer.param_groups[0]["lr"] == 50.0


def test_a_full_disk_raises_what_a_full_disk_raises(tmp_path: Path) -> None:
    """OSError with ENOSPC, and no file."""
    faults = injection("checkpoint-write-failure")
    next(faults.steps(1, 1))
    with pytest.raises(OSError, match="No space left on device") as told:
        faults.write_file(tmp_path / "state", b"content")
    assert told.value.errno == errno.ENOSPC
    assert not (tmp_path / "state").exists()


def test_corruption_flips_bytes_and_keeps_the_length(tmp_path: Path) -> None:
    """Only a checksum can tell."""
    faults = injection("checkpoint-corruption:until=2")
    steps = faults.steps(1, 2)
    contents = []
    for _ in steps:
        faults.write_file(tmp_path / "state", bytes(100))
        contents.append((tmp_path / "state").read_bytes())
    assert contents[0] != bytes(100) and len(contents[0]) == 100
    assert contents[1] == bytes(100)


def test_a_fault_file_strikes_a_running_job(tmp_path: Path) -> None:
    """From the step after it was written."""
    faults = Injection(0, (), FaultFile(tmp_path / "faults", 4))
    seen = []
    for step in faults.steps(1, 3):
        seen.append(faults.conditions.compute_factor)
        if step == 1:
            (tmp_path / "faults").write_text("straggler:rank=0,factor=4\n")
    assert seen == [1.0, 4.0, 4.0]


def test_jitter_pauses_in_steps_drawn_at_random_once_in_each() -> None:
    """One step of five on average, and the same ones in a run that is resumed."""
    slept: list[float] = []
    struck = []
    for first in (1, 101):
        faults = injection("jitter:seconds=0.3,every=5", slept=slept)
        for step in faults.steps(first, 200):
            before = len(slept)
            faults.strike(torch.ones(()))
            faults.strike(torch.ones(()))
            struck += [step] * (len(slept) - before)
    late = [step for step in struck if step > 100]
    assert set(slept) == {0.3}
    assert 25 <= len({*struck}) <= 55
    assert sorted(late) == sorted([*{*late}] * 2), "twice: before and after the resume"


def test_jitter_strikes_ranks_in_steps_of_their_own() -> None:
    """Else they were late together, and nobody waited."""
    struck: dict[int, list[int]] = {0: [], 1: []}
    for rank, steps in struck.items():
        slept: list[float] = []
        faults = injection("jitter:every=3", rank=rank, slept=slept)
        for step in faults.steps(1, 60):
            before = len(slept)
            faults.strike(torch.ones(()))
            steps += [step] * (len(slept) - before)
    assert struck[0] and struck[1] and struck[0] != struck[1]


def test_unequal_batches_cut_micro_batches_to_lengths_of_their_own() -> None:
    """Between a full context and a quarter of it; ranks draw for themselves."""
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
