"""What `diagnose run` says of replicas, from black boxes in which each rank has read its own model."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rankwatch.conventions.vocabulary import Capability, Unseen
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.replicas import Replicas
from rankwatch_diagnosis.run.report import as_json, colour_of, lines
from rankwatch_diagnosis.run.summary import summary_lines
from support.automatic.programs import run_program
from support.diagnosis.run_boxes import recorded_run

EVERY = 10


@pytest.fixture(autouse=True)
def interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWATCH_FINGERPRINT_STEPS", str(EVERY))


Change = Callable[[torch.nn.Module, int], None]


def train(directory: Path, ranks: int, change: Change | None = None, changed: int = 2, at: int = 25) -> None:
    """Ranks that hold one model, and one of them that changes it after step `at`."""
    for number in range(ranks):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(20)))
        run = recorded_run(directory, rank=number, world=ranks)
        for step in range(46):
            with run.step(step):
                run.fingerprint(model)
                if change is not None and number == changed and step == at:
                    change(model, step)
        run.finish()


def flip(model: torch.nn.Module, step: int) -> None:
    """The lowest bit of one weight of layer 7."""
    with torch.no_grad():
        model[7].weight.view(torch.int32)[1, 2] ^= 1  # type: ignore[index]


def judged(directory: Path) -> tuple[Replicas, list[str]]:
    verdict = diagnose_run(directory)
    printed = list(lines(verdict))
    at = next(number for number, line in enumerate(printed) if line.startswith("replicas:"))
    return verdict.replicas, [printed[0], printed[at].removeprefix("replicas:").strip(), *printed[at + 1 :]]


def test_odd_replica_of_four(tmp_path: Path) -> None:
    """A flipped bit is named at the next aligned step: the rank, the last equal step, the parameters."""
    train(tmp_path, 4, flip)
    found, (head, line, *_) = judged(tmp_path)
    (one,) = found.sets
    assert (one.members, one.ranks, one.odd_ranks) == ("0-3", (0, 1, 2, 3), (2,))
    assert (one.newest_equal_step, one.differing_step) == (20, 30)
    what = "rank 2 differs from the majority of ranks 0-3 at step 30, equal at step 20"
    assert line == f"{what}; in the group of parameters that begins with {one.parameters[0]}"
    assert head.endswith(what)
    assert f"  replicas     {what}" in summary_lines(tmp_path)
    layer = int(one.parameters[0].split(".")[0])
    assert len(one.parameters) == 1
    assert layer in (6, 7)


def test_two_replicas(tmp_path: Path) -> None:
    """Of two that differ, nothing tells which one is wrong. Red or green says nothing: the head is yellow."""
    train(tmp_path, 2, flip, changed=1)
    found, (_, line, *_) = judged(tmp_path)
    assert found.odd_ranks == ()
    assert line.startswith("ranks 0 and 1 differ, and one of both is wrong, at step 30, equal at step 20;")
    verdict = diagnose_run(tmp_path)
    assert (next(lines(verdict)).partition(":")[0], colour_of(verdict)) == ("FINISHED", "yellow")


@pytest.mark.parametrize(
    ("norms", "odd"),
    [
        ((0.5, 0.5, 0.5, 0.51), (3,)),
        ((0.5, 0.5, math.nan, 0.5), (2,)),
        ((0.5, 0.5, 0.502, 0.5), ()),  # the neighbouring number of bfloat16
        ((0.5, 0.52, 0.6, 0.49), ()),  # before the all-reduce
        ((math.nan,) * 4, ()),
        ((math.inf,) * 4, ()),
        ((0.0,) * 4, ()),
    ],
)
def test_gradient_norms(norms: tuple[float, ...], odd: tuple[int, ...], tmp_path: Path) -> None:
    """After the all-reduce the norm is the same on all replicas, also in steps without a fingerprint."""
    for number, norm in enumerate(norms):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        run = recorded_run(tmp_path, rank=number, world=4)
        for step in range(16):
            with run.step(step):
                run.fingerprint(model)
                run.scalar("gradient_norm", norm if step == 13 else 1.0 / (1 + step))
        run.finish()
    found, (head, line, *_) = judged(tmp_path)
    (one,) = found.sets
    assert one.norm_odd_ranks == odd
    assert not one.differ
    if odd:
        what = f"rank {odd[0]} has another gradient norm than the majority of ranks 0-3 at step 13"
        assert line == what
        assert head.endswith(what)
    else:
        assert line.startswith("equal: ")


WRONG_GRADIENT = """
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters())
for number in range(25):
    model(torch.randn(4, 8)).square().mean().backward()
    if RANK == 2 and number == 13:
        model.module.weight.grad[0, 0] += 1
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.process
@pytest.mark.timeout(120)
def test_wrong_gradient(tmp_path: Path) -> None:
    """One wrong gradient of one rank shows in its norm at once, and in the next fingerprint."""
    (first, *_) = run_program(WRONG_GRADIENT, tmp_path, ranks=4)
    (one,) = diagnose_run(first.parent).replicas.sets
    assert (one.norm_differing_step, one.norm_odd_ranks) == (13, (2,))
    assert (one.newest_equal_step, one.differing_step, one.odd_ranks) == (10, 20, (2,))


def test_equal_replicas(tmp_path: Path) -> None:
    train(tmp_path, 3)
    found, (head, line, *_) = judged(tmp_path)
    assert not found.differing
    assert line == "equal: 3 ranks, 5 fingerprints compared, the newest of step 40"
    assert "differ" not in head
    assert not any("replicas" in each for each in summary_lines(tmp_path))


def test_other_model_on_a_rank(tmp_path: Path) -> None:
    """A module that one rank alone has changed in size differs as a whole, and nothing fails."""

    def grow(model: torch.nn.Module, step: int) -> None:
        model.append(torch.nn.Linear(4, 4))  # type: ignore[operator]

    train(tmp_path, 4, grow)
    found, _ = judged(tmp_path)
    assert (found.odd_ranks, found.sets[0].differing_step) == ((2,), 30)


def test_step_taken_again(tmp_path: Path) -> None:
    """A rank that has gone back to an earlier step is not compared with those that have not yet."""
    for number in range(3):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        run = recorded_run(tmp_path, rank=number, world=3)
        for step in (0, 10, 20, *((10,) if number == 1 else ())):
            with run.step(step), torch.no_grad():
                model.weight += 1
                run.fingerprint(model)
        run.finish()
    assert not judged(tmp_path)[0].differing


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (None, "no fingerprints recorded"),
        (Unseen.SHARDED, "not applicable: the parameters are sharded, so no other rank holds the same ones"),
        (Unseen.OFF, "no fingerprints recorded, because a setting turns it off"),
    ],
)
def test_nothing_to_compare(why: Unseen | None, words: str, tmp_path: Path) -> None:
    """One line says why; the capability is not said a second time. JSON has the reason, too."""
    run = recorded_run(tmp_path)
    with run, run.step():
        if why is not None:
            run.cannot_see(Capability.REPLICAS, why)
    _, (_, line, following, *_) = judged(tmp_path)
    assert line == words
    assert "visible" not in following
    assert as_json(diagnose_run(tmp_path))["replicas"] == {"why_none": why, "recorded": False, "sets": []}
