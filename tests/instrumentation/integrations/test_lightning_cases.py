"""Trainings with Lightning that go another way than most."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions.vocabulary import Capability, Lifecycle
from support.frameworks.jobs import RANKS, ZERO, Job, run, run_cases

pytest.importorskip("lightning")
pytestmark = [pytest.mark.frameworks, pytest.mark.nightly, pytest.mark.process]


_CASES = (
    "ahead", "raw", "failing", "interrupted", "background", "spawn", "twice", "resumed", "evaluated",
    "scheduled", "barebones", "adversaries", "uncaught", "own_run", "found_rate", "fabric",
)  # fmt: skip
Cases = dict[str, tuple[Job, Any]]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return run_cases("lightning_cases.py", tmp_path_factory.mktemp("cases"), *_CASES)


def test_fetch_ahead(cases: Cases) -> None:
    """A loader of unknown length is fetched one batch ahead; each step still has one wait."""
    job, done = cases["ahead"]
    assert job.steps(0) == list(range(1, done + 1))
    assert [number for number, _ in job.work(0, "samples")] == job.steps(0)
    assert len(job.phases(0, "data_wait")) >= done
    assert job.now(0).errors == 0


def test_exception(cases: Cases) -> None:
    """A step that an exception ends has failed. The next training of the process is led again."""
    job, done = cases["failing"]
    steps = [each.payload for each in job.records(0) if each.kind == RecordKind.STEP]
    assert [(int(number), bool(failed)) for number, failed in steps] == [
        (1, False),
        (2, False),
        (3, True),
        *[(number, False) for number in range(1, done + 1)],
    ]


def test_interrupt(cases: Cases) -> None:
    """Ctrl-C is an interrupt, although Lightning exits with status 1."""
    job, _ = cases["interrupted"]
    assert job.now(0).ended_by == Lifecycle.INTERRUPTED


def test_background_checkpoints(cases: Cases) -> None:
    """A save lasts until its bytes are down, and blocks training for less."""
    job, done = cases["background"]
    saves = [
        each
        for each in job.records(0)
        if each.kind == RecordKind.CHECKPOINT and each.name == "save" and not each.payload[2]
    ]
    assert sorted(int(each.payload[1]) for each in saves) == list(range(1, done + 1))
    assert all(not each.payload[3] for each in saves)
    assert all(each.payload[4] <= each.end - each.start for each in saves)


def test_spawned_ranks(cases: Cases) -> None:
    """`ddp_spawn` pickles trainer and callback; the ranks are known in `setup`."""
    job, done = cases["spawn"]
    for rank in range(2):
        assert job.steps(rank) == list(range(1, done + 1))


def test_optimizer_without_wrapper(cases: Cases) -> None:
    """Lightning does not count the steps of an optimizer that goes around it. They end steps all the same."""
    job, done = cases["raw"]
    assert job.steps(0) == list(range(1, done + 1))
    assert [number for number, _ in job.scalars(0, "loss")] == job.steps(0)


@pytest.mark.parametrize("case", ["twice", "barebones", "resumed", "found_rate"])
def test_numbers(case: str, cases: Cases) -> None:
    """Steps have Lightning's numbers: when `fit` goes on, without any extras, and after a search that has
    trained and put everything back."""
    job, done = cases[case]
    assert job.steps(0) == list(range(1, done + 1))
    assert [number for number, _ in job.scalars(0, "loss")] == job.steps(0)
    assert job.now(0).errors == 0


def test_resume(cases: Cases) -> None:
    """Another Trainer goes on from a checkpoint."""
    job, _ = cases["resumed"]
    assert job.checkpoints(0, "save") == job.checkpoints(0, "load") == [(3, True)]
    assert [each.payload[0] for each in job.records(0) if each.name == Lifecycle.RESUMED] == [3]


def test_evaluations(cases: Cases) -> None:
    """A test before the training, and validation, test and prediction after it, with a data module."""
    job, done = cases["evaluated"]
    assert job.steps(0) == list(range(1, done + 1))
    assert len(job.phases(0, "data_wait")) == done
    assert len(job.phases(0, "evaluation")) >= 3
    assert job.seconds_of_steps(0, "evaluation") == 0.0


def test_scheduled_accumulation(cases: Cases) -> None:
    """Batches of a step may change in number. How many steps there will be is not known then."""
    job, done = cases["scheduled"]
    assert job.steps(0) == list(range(1, done + 1))
    assert [samples for _, samples in job.work(0, "samples")] == [1, 1, 1, 1, 1, 1, 4, 2]
    assert job.now(0).target_steps == 0


def test_several_optimizers(cases: Cases) -> None:
    """A batch is one step, whichever optimizers step in it. Losses that `training_step` does not return are
    those given to `backward`."""
    job, done = cases["adversaries"]
    assert job.steps(0) == list(range(1, done + 1))
    assert len(job.phases(0, "optimizer")) == done + done // 2
    assert [number for number, _ in job.scalars(0, "loss")] == list(range(2, done + 1))
    assert job.now(0).capabilities[Capability.LOSS] is None
    assert job.now(0).errors == 0


def test_exit_cause(cases: Cases) -> None:
    """An exception that nobody catches is the end of the run, and of the step."""
    job, _ = cases["uncaught"]
    assert job.steps(0) == [1, 2]
    assert job.now(0).ended_by == Lifecycle.FAILED


def test_run_of_script(cases: Cases) -> None:
    """The callback records into the run that the script has started, and the script ends it."""
    job, done = cases["own_run"]
    assert job.steps(0) == list(range(1, done + 1))
    for phase in ("data_wait", "forward", "backward", "optimizer"):
        assert len(job.phases(0, phase)) == done
    assert len(job.scalars(0, "mine")) == 1
    assert job.now(0).ended_by == Lifecycle.FINISHED


def test_fabric(cases: Cases) -> None:
    """A loop with Fabric is recorded as any other loop, with the checkpoints of Fabric."""
    job, losses = cases["fabric"]
    done = len(losses) // 2
    assert job.steps(0) == list(range(done))
    expected = [sum(losses[at : at + 2]) for at in range(0, len(losses), 2)]
    assert [loss for _, loss in job.scalars(0, "loss")] == pytest.approx(expected, rel=1e-6)
    assert len(job.phases(0, "data_wait")) == len(losses)
    assert len(job.scalars(0, "gradient_norm")) == done
    assert job.checkpoints(0, "save") == job.checkpoints(0, "load") == [(done - 1, True)]
    saved = [each for each in job.records(0) if each.kind == RecordKind.CHECKPOINT and each.name == "save"]
    assert max(each.payload[0] for each in saved) > 0
    assert job.now(0).errors == 0


@pytest.mark.timeout(300)
def test_manual_optimization(tmp_path: Path) -> None:
    """One step for each call of `training_step`, in which both networks have forward, backward and optimizer
    phases that follow each other: DistributedDataParallel's forward pass contains them all."""
    job = run("lightning_manual.py", tmp_path, ZERO)
    for rank in range(RANKS):
        assert job.steps(rank) == list(range(1, job.wrote(rank) + 1))
        assert job.now(rank).errors == 0
        records = job.records(rank)
        assert all(each.start <= each.end for each in records)
        phases = sorted(
            (each.start, each.end, each.name) for each in records if each.kind == RecordKind.PHASE
        )
        for step in (each for each in records if each.kind == RecordKind.STEP):
            inside = [each for each in phases if step.start <= each[0] and each[1] <= step.end]
            assert [name for *_, name in inside] == ["data_wait", *("forward", "backward", "optimizer") * 2]
            assert all(before[1] <= after[0] for before, after in pairwise(inside))
